"""`moonpool serve` before two vLLM servers with LoRA adapters: callers ask for one as for a model,
and a prompt goes where what was computed under the same weights is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from kvstore.cli.stack import STOP_SECONDS, Child
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import Space
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.connectors.vllm.models import adapter, prompt
from tests.connectors.vllm.server import Server, servers
from tests.nodes import eventually
from tests.pools import ConductorProcess, pool

NEW, SECONDS = 8, 60.0
NAMES = ("french", "law")


@dataclass
class Fleet:
    conductor: ConductorProcess
    servers: list[Server]
    gateway: str

    def ask(self, model: str, tokens: list[int], at: str = "") -> openai.types.Completion:
        """The gateway, or a server itself."""
        where = f"http://{at or self.gateway}/v1"
        with openai.OpenAI(base_url=where, api_key="k", max_retries=0, timeout=SECONDS) as ai:
            more = {"ignore_eos": True}
            return ai.completions.create(
                model=model, prompt=tokens, max_tokens=NEW, temperature=0, extra_body=more
            )

    @property
    def crews(self) -> list[pb.CrewsReply.Crew]:
        (any_,) = self.conductor.stub.Crews(pb.CrewsRequest(), timeout=5).crews or [None]
        if any_ is None:
            return []
        asked = pb.CrewsRequest(revision=any_.revision)
        return list(self.conductor.stub.Crews(asked, timeout=5).crews)

    @property
    def weights(self) -> dict[str, bytes]:
        return {one.name: one.weights for crew in self.crews for one in crew.adapters}

    def settled(self, model: str, tokens: list[int]) -> None:
        """Returns once conductors know that the pool has all whole blocks of a prompt."""
        (crew,) = self.crews
        space = Space(crew.namespace, crew.group, crew.block_tokens, adapters=self.weights)
        whole = tokens[: len(tokens) // crew.block_tokens * crew.block_tokens]
        request = Request("r", tuple(whole), 1, adapter="" if model == "tiny" else model)
        hashes = space.asked(request).hashes
        assert hashes, "nobody can name them"
        asked = pb.PoolMatchRequest(namespace=crew.namespace, group=crew.group, hashes=hashes)
        stub = self.conductor.stub
        eventually(lambda: stub.Match(asked, timeout=5).blocks == len(hashes), SECONDS)

    def foreseen(self, answer: openai.types.Completion, tokens: int) -> int:
        """Tokens that the conductor said would not be computed."""
        asked = pb.ExplainRequest(request_id=f"{answer.id}-0")
        plan = self.conductor.stub.Explain(asked, timeout=5).plan
        return tokens - plan.split.computed_tokens


@pytest.fixture(scope="module")
def fleet(
    model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder, logs = model("llama"), tmp_path_factory.mktemp("adapters")
    adapters = {name: adapter(logs / name, seed) for seed, name in enumerate(NAMES)}
    with pool() as nodes:
        conductor = nodes.conductor()
        told = {"conductors": [conductor.address], "adapters": adapters}
        both = [
            Server(folder, logs / f"{at}.log", node=nodes.node(at, dram="64MiB").address, **told)
            for at in "ab"
        ]
        options = ["serve", "--model", os.fspath(folder), "--name", "tiny"]
        options += ["--listen", "127.0.0.1:0", "--conductor", conductor.address]
        child = Child("serve", [*options, *(f"--adapter={name}" for name in NAMES)], logs)
        with servers(*both):
            child.start()
            try:
                child.wait_ready()
                found = Fleet(conductor, both, child.address)
                eventually(lambda: [one.engines for one in found.crews] == [2], SECONDS)
                yield found
            finally:
                child.stop()
                child.reap(time.monotonic() + STOP_SECONDS)


def test_an_adapter_s_answer_is_that_of_a_server_asked_for_it_and_no_other_s(fleet: Fleet) -> None:
    tokens, texts = prompt(60, 200), []
    for model in ("tiny", *NAMES):
        answer = fleet.ask(model, tokens)
        assert answer.model == model
        texts.append(answer.choices[0].text)
    assert texts == [
        fleet.ask(model, tokens, fleet.servers[0].place).choices[0].text
        for model in ("tiny", *NAMES)
    ]
    assert len(set(texts)) == 3, "the adapters change nothing"
    with pytest.raises(openai.NotFoundError, match="'french'"):
        fleet.ask("latin", tokens)


def test_conductors_know_by_its_weights_what_the_pool_has_under_an_adapter(fleet: Fleet) -> None:
    for model in NAMES:
        fleet.ask(model, prompt(61, 70))  # its weights are known from the first prompt on
    eventually(lambda: [len(fleet.weights.get(name, b"")) for name in NAMES] == [32, 32])
    assert len({*fleet.weights.values()}) == 2
    time.sleep(1.5)  # as long as a gateway goes by what it heard before
    tokens = prompt(62, 300)
    for number in range(3):
        more = [*tokens, *prompt(63 + number, 40)]
        answer = fleet.ask("french", more)
        found = answer.usage.prompt_tokens_details.cached_tokens // 64 * 64
        assert found == fleet.foreseen(answer, 340) == (256 if number else 0)
        fleet.settled("french", tokens)
    for model in ("law", "tiny"):
        plain = fleet.ask(model, [*tokens, *prompt(70, 40)])
        assert plain.usage.prompt_tokens_details.cached_tokens < 64, "what is one's is no other's"
        assert fleet.foreseen(plain, 340) == 0
