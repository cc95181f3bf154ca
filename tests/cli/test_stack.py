"""A stack is told to stop while it waits for a process to serve, as at any other time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kvstore.cli import stack as module
from kvstore.cli.parts import Plan
from kvstore.cli.stack import Stack
from kvstore.errors import ConfigError, Unavailable
from tests.nodes import PATIENCE_SECONDS, eventually


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


def test_a_process_that_is_at_work_is_waited_for_though_its_time_is_over(
    silent: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def works(pid: int) -> float:
        nonlocal looks
        looks += 1
        if looks == 10:
            (tmp_path / "done").touch()
        return 100.0 * looks

    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\nuntil [ -e {tmp_path}/done ]; do sleep 0.1; done\n"
        'echo \'{"ready": "127.0.0.1:1"}\'\nexec sleep 600\n'
    )
    monkeypatch.setattr(module, "READY_SECONDS", 0.5)
    monkeypatch.setattr(module, "worked_seconds", works)
    node = silent.children["node"]
    node.start()
    node.wait_ready()
    assert node.address == "127.0.0.1:1" and looks >= 10


def test_what_a_process_compiles_before_it_serves_is_told_and_nothing_else_of_its_log(
    silent: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = silent.children["node"]
    node.log.write_text("compiling what the one before it had to\n")
    (tmp_path / "python").write_text(
        "#!/bin/sh\nexec 3>&1 >&2\necho 'compiling the node: a minute'\necho it is well\n"
        "echo 'still compiling the node, 15 s'\n"
        'echo \'{"ready": "127.0.0.1:1"}\' >&3\nexec sleep 600\n'
    )
    node.start()
    node.wait_ready()
    said = "compiling the node: a minute\nstill compiling the node, 15 s\n"
    assert capsys.readouterr().err == said


def test_of_each_process_it_is_told_that_it_serves_as_soon_as_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho \'{"ready": "127.0.0.1:1"}\'\nexec sleep 600\n')
    program.chmod(0o700)
    monkeypatch.setattr(module.sys, "executable", str(program))
    told: list[tuple[str, str]] = []
    with Stack(Plan(tmp_path, "16MiB", "8MiB", tmp_path), restart=False) as stack:
        stack.start(lambda child: told.append((child.name, stack.addresses["decode"])))
    assert told == [("node", ""), ("prefill", ""), ("decode", "127.0.0.1:1")]


def test_a_process_that_does_nothing_is_given_up_when_its_time_is_over(
    silent: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_SECONDS", 0.5)
    node = silent.children["node"]
    node.start()
    with pytest.raises(Unavailable, match=r"node was not ready, and has done nothing .*node\.log"):
        node.wait_ready()


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("echo why >&2; exit 1", "why"),
        ("echo 'moonpool: why' >&2; exit 1", "why"),
        ("exit 1", r"it left no word in .*node\.log"),
        ("kill -KILL $$", r"it was ended by signal 9: perhaps there was no memory for it"),
        ("echo why >&2; kill -ABRT $$", r"why \(it was ended by signal 6\)"),
    ],
)
def test_of_a_process_that_ends_while_it_starts_what_it_said_and_how_it_ended_is_told(
    silent: Stack, tmp_path: Path, ends: str, said: str
) -> None:
    node = silent.children["node"]
    node.log.write_text("what the one before it had said\n")
    (tmp_path / "python").write_text(f"#!/bin/sh\n{ends}\n")
    node.start()
    with pytest.raises(Unavailable, match=f"^node did not start: {said}$"):
        node.wait_ready()


def test_one_that_refuses_what_it_is_told_is_a_wrong_command_line(
    silent: Stack, tmp_path: Path
) -> None:
    node = silent.children["node"]
    (tmp_path / "python").write_text("#!/bin/sh\necho no such thing >&2\nexit 2\n")
    node.start()
    with pytest.raises(ConfigError, match=r"^node did not start: no such thing$"):
        node.wait_ready()


def test_of_a_process_that_said_much_before_it_ended_the_last_of_it_is_read(
    silent: Stack, tmp_path: Path
) -> None:
    node = silent.children["node"]
    much = "head -c 1000000 /dev/zero | tr '\\0' x"
    (tmp_path / "python").write_text(f"#!/bin/sh\n{much} >&2\necho >&2\nexit 1\n")
    node.start()
    with pytest.raises(Unavailable) as caught:
        node.wait_ready()
    assert 0 < str(caught.value).count("x") <= module.LAST_WORDS_BYTES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_told_to_while_a_process_that_it_started_again_does_not_serve_yet(
    silent: Stack,
    tmp_path: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "READY_SECONDS", 2 * PATIENCE_SECONDS)
    monkeypatch.setattr(module, "RESTART_SECONDS_MIN", 0.01)
    node, begun = silent.children["node"], tmp_path / "begun"
    node.start()
    eventually(begun.exists)

    def told() -> None:
        try:
            os.kill(node.pid, signal.SIGKILL)
            eventually(lambda: begun.read_text().count("begun") == 2)
        finally:  # or it is watched for ever
            os.kill(os.getpid(), number)

    with ThreadPoolExecutor(1) as thread:
        teller = thread.submit(told)
        silent.watch()
        teller.result()
    assert "was not ready" not in capsys.readouterr().err
    assert node.exited is None, "it was stopped waiting for, and is still to be stopped"


def test_a_process_that_was_told_to_end_is_not_started_again(
    silent: Stack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a node is by `moonpool drain`, by which it ends well."""
    (tmp_path / "python").write_text(f"#!/bin/sh\necho begun >> {tmp_path}/begun\n")
    monkeypatch.setattr(module, "RESTART_SECONDS_MIN", 0.01)
    node, looks = silent.children["node"], iter([False] * 5 + [True] * 9)
    node.start()
    eventually(lambda: node.exited == 0)
    monkeypatch.setattr(silent, "_told_within", lambda seconds: next(looks))
    silent.watch()
    assert (tmp_path / "begun").read_text() == "begun\n"
    assert capsys.readouterr().err == "node ended as it was told to\n"


def test_it_stops_whatever_line_of_its_waiting_a_signal_interrupts(
    silent: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)

    def stuck(*_: object) -> None:
        raise AssertionError(f"it waits for itself: a signal came at line {at} of its waiting")

    signal.signal(signal.SIGALRM, stuck)
    lines = at = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_globals["__name__"] in ("signal", "enum"):
            return None  # not of its waiting
        if event == "line":
            lines += 1
            if lines == at:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    silent._signals.put(signal.SIGTERM)
    silent.watch()  # from here on, a signal is not this process's end
    before = sys.gettrace()
    try:
        while at < 40:
            silent._signals.get()
            lines, at = 0, at + 1
            signal.alarm(60)
            sys.settrace(trace)
            silent.watch()
            sys.settrace(before)
    finally:
        sys.settrace(before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
