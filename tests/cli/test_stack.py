"""A stack is told to stop while it waits for a process to serve, as at any other time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.cli import stack as module
from kvstore.cli.parts import Plan
from kvstore.cli.stack import Stack
from tests.nodes import eventually


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """One whose processes, once they have noted it, never come to serve."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho begun >> {tmp_path}/begun\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(module.sys, "executable", str(program))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with Stack(Plan(tmp_path, "16MiB", "8MiB", None), restart=True) as stack:
        yield stack
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_told_to_while_a_process_that_it_started_again_does_not_serve_yet(
    silent: Stack,
    tmp_path: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "READY_SECONDS", 10.0)
    monkeypatch.setattr(module, "RESTART_SECONDS_MIN", 0.01)
    node, begun = silent.children["node"], tmp_path / "begun"
    node.start()
    eventually(begun.exists)

    def told() -> None:
        os.kill(node.pid, signal.SIGKILL)
        eventually(lambda: begun.read_text().count("begun") == 2)
        os.kill(os.getpid(), number)

    teller = threading.Thread(target=told)
    teller.start()
    silent.watch()
    teller.join()
    assert "was not ready" not in capsys.readouterr().err
    assert node.exited is None, "it was stopped waiting for, and is still to be stopped"
