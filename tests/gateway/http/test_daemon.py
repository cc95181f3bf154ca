"""The gateway's process, and what it takes of its host."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import openai
import pytest

from kvstore.engine.make_model import make_model
from tests.gateway.http.conftest import House, client_of

FILES, CALLERS, SECONDS = 256, 300, 8.0  # fewer than it lets stay that say nothing


def test_callers_that_stay_leave_it_files_for_its_engines(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few_files() -> None:
        """As a shell gives them to what is started from it."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))

    # In the child alone: this process may have more open than that.
    popen = partial(subprocess.Popen, preexec_fn=few_files)
    monkeypatch.setattr(subprocess, "Popen", popen)
    with ExitStack() as parts:
        gateway = parts.enter_context(house.serving("few", *house.knows))
        monkeypatch.undo()
        host, _, port = gateway.address.rpartition(":")
        for _ in range(CALLERS):
            parts.enter_context(socket.create_connection((host, int(port))))
        ai = parts.enter_context(client_of(gateway)).with_options(timeout=SECONDS)
        answer = ai.completions.create(model="tiny", prompt="w1 w2", max_tokens=4)
        assert answer.usage is not None and answer.usage.prompt_tokens


def test_a_conductor_that_does_not_answer_may_remember_what_one_that_does_has_not_heard_of(
    house: House,
) -> None:
    nowhere = "--conductor=127.0.0.1:1"
    for name, knows, code in (("known", house.knows, 404), ("unknown", (nowhere,), 503)):
        with house.serving(name, *knows) as gateway, pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(f"http://{gateway.address}/board/requests/r", timeout=60)
        assert told.value.code == code


def test_an_engine_that_has_another_model_answers_nothing(house: House, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", seed=7)
    engine = house.engines[0].address
    serve = ["serve", "--model", os.fspath(other), "--name=tiny", "--listen=127.0.0.1:0"]
    with (
        house.running("mistaken", [*serve, f"--engine={engine}"]) as gateway,
        client_of(gateway) as ai,
        pytest.raises(openai.InternalServerError, match="has other weights") as none,
    ):
        ai.completions.create(model="tiny", prompt="w1 w2", max_tokens=4)
    assert none.value.status_code == 503 and none.value.response.headers["retry-after"] == "1"
