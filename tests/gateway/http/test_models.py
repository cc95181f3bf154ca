"""A model and LoRA adapters of it, as callers name them and are answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kvstore.config import GatewayConfig
from kvstore.errors import ConfigError
from kvstore.gateway.http.served import Served
from kvstore.gateway.needs import Lacks
from tests.gateway.http.test_app import Caller, Reply, Scripted

ENGINES = ("http://127.0.0.1:1",)


@pytest.fixture(scope="module")
def served(model_dir: Path) -> Served:
    return Served.of(GatewayConfig(model_dir, engines=ENGINES, adapters=("french", "law")))


def called(served: Served, runner: Scripted, model: str) -> Reply:
    async def run() -> Reply:
        return await Caller(served, runner).ask(model=model)

    return asyncio.run(run())


def test_an_adapter_is_asked_for_as_a_model_is_and_named_in_the_answer(served: Served) -> None:
    runner = Scripted()
    for model in ("tiny", "law"):
        reply = called(served, runner, model)
        assert reply.status == 200 and json.loads(reply.body)["model"] == model
    assert [one.adapter for one in runner.requests] == ["", "law"]


def test_what_is_neither_is_not_served_and_the_refusal_says_what_is(served: Served) -> None:
    reply = called(served, Scripted(), "latin")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert all(repr(one) in reply.error["message"] for one in ("latin", "tiny", "french", "law"))


def test_an_adapter_that_no_server_has_is_no_model(served: Served) -> None:
    reply = called(served, Scripted(tokens=(), error=Lacks("no server has it")), "law")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_adapters_are_listed_behind_the_model_that_they_are_of(served: Served) -> None:
    async def run() -> Reply:
        return await Caller(served, Scripted()).call("GET", "/v1/models")

    listed = json.loads(asyncio.run(run()).body)["data"]
    assert [(one["id"], one.get("parent")) for one in listed] == [
        ("tiny", None),
        ("french", "tiny"),
        ("law", "tiny"),
    ]


@pytest.mark.parametrize("adapters", [("a", "b", "a"), ("tiny",), ("",)])
def test_no_name_is_given_twice(model_dir: Path, adapters: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--adapter"):
        GatewayConfig(model_dir, engines=ENGINES, adapters=adapters)
