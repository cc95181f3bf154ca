"""The gateway's process, and what it takes of its host."""

from __future__ import annotations

import resource
import socket
import subprocess
from contextlib import ExitStack
from functools import partial

import pytest

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
