"""What a node asks of its mover: nothing is over while something of it may still move."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from kvstore.errors import Unavailable
from kvstore.memory.arena import Arena
from kvstore.node import ucx_moves
from kvstore.node.ucx_moves import Run, UcxMoves
from kvstore.node.ucx_words import What
from kvstore.transfer.frames import Segment
from kvstore.transfer.ucx_memory import Registration
from tests.nodes import eventually

RUN: Run = (0, 0, 8)


class Late(Future[None]):
    """An answer of the mover's that says whether it was waited for."""

    waited = False

    def result(self, timeout: float | None = None) -> None:
        self.waited = True
        return super().result(timeout)


def answers(*failed: bool) -> list[Late]:
    made = [Late() for _ in failed]
    for one, fails in zip(made, failed, strict=True):
        one.set_exception(Unavailable("it is gone")) if fails else one.set_result(None)
    return made


def moving(asked: list[Late], pieces: int) -> Iterator[None]:
    """A call of so many pieces, each of which the mover answers so."""
    moves, left = cast(Any, UcxMoves.__new__(UcxMoves)), iter(asked)

    def ask(*_: Any) -> Late:
        if (answer := next(left, None)) is None:
            raise Unavailable("what moved blocks over ucx has ended")
        return answer

    moves._ask = ask
    runs = (iter([RUN]) for _ in range(pieces))
    about = (SimpleNamespace(), What.READ, bytes(16), Registration(0, Segment.DRAM))
    return cast(Iterator[None], moves.move(*about, runs))


def test_a_call_that_fails_is_over_when_all_that_it_asked_for_is() -> None:
    """Else bytes of its last pieces come to slots, and to buffers, that are others' by then."""
    asked = answers(True, True, True, False)
    with pytest.raises(Unavailable, match="it is gone"):
        list(moving(asked, pieces=4))
    assert [one.waited for one in asked] == [True] * 4


def test_a_call_that_nobody_follows_to_its_end_is_over_when_all_that_it_asked_for_is() -> None:
    asked = answers(False, *[True] * 7, False)
    call = cast(Any, moving(asked, pieces=9))
    next(call)
    with pytest.raises(Unavailable, match="it is gone"):
        call.close()
    assert [one.waited for one in asked[:8]] == [True] * 8


HUNG = f"""#!{sys.executable}
import os, sys, time
os.write(int(sys.argv[3]), bytes(8))  # it has started
time.sleep(600)
"""


def test_a_mover_that_takes_no_more_requests_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is full before a call has asked for all that it may ask at once."""
    hung = tmp_path / "hung"
    hung.write_text(HUNG)
    hung.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(hung))
    monkeypatch.setattr(ucx_moves, "UCX_MOVE_SECONDS", 0.1)
    monkeypatch.setattr(ucx_moves, "_GRACE_SECONDS", 0.1)
    moves = UcxMoves(Arena.create(1 << 20))
    told: list[Unavailable] = []

    def call() -> None:
        runs = (iter([RUN] * 1_024) for _ in itertools.count())
        about = (moves._process, What.READ, bytes(16), Registration(0, Segment.DRAM))
        try:
            list(moves.move(*about, runs))
        except Unavailable as error:
            told.append(error)

    calls = [threading.Thread(target=call, daemon=True) for _ in range(4)]
    for one in calls:
        one.start()
    for one in calls:
        one.join(30.0)
    moves.close()
    assert len(told) == len(calls)


STARTS_ONCE = f"""#!{sys.executable}
import os, sys, time
from pathlib import Path
if (said := Path(__file__).with_name("said")).exists():
    Path(__file__).with_name("again").touch()  # and never says that it has started
else:
    said.touch()
    os.write(int(sys.argv[3]), bytes(8))
time.sleep(600)
"""


def test_a_mover_that_is_being_started_ends_with_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the arena, and what it moves in it, for as long as nobody looks."""
    program = tmp_path / "mover"
    program.write_text(STARTS_ONCE)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(ucx_moves, "_PAUSE_SECONDS", 0.0)
    moves = UcxMoves(Arena.create(1 << 20))
    moves._end(moves._process)
    refused: list[Unavailable] = []

    def use() -> None:
        try:
            moves._running()
        except Unavailable as error:
            refused.append(error)

    caller = threading.Thread(target=use, daemon=True)
    caller.start()
    assert eventually((tmp_path / "again").exists, 20.0)
    moves.close()
    assert not [one for one in psutil.Process().children() if str(program) in one.cmdline()]
    caller.join(20.0)
    assert len(refused) == 1


FAILS_TO_START_AGAIN = f"""#!{sys.executable}
import os, sys, time
from pathlib import Path
if (said := Path(__file__).with_name("said")).exists():
    with Path(__file__).with_name("again").open("a") as again:
        again.write("again ")
    sys.exit(1)
said.touch()
os.write(int(sys.argv[3]), bytes(8))
time.sleep(600)
"""


class Asked:
    """A lock that says how many have come to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.came: list[int] = []

    def __enter__(self) -> None:
        self.came.append(threading.get_ident())
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_those_that_wait_for_a_mover_that_does_not_start_are_refused_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each starts it again in its turn, and the last waits for as many starts as there are."""
    program = tmp_path / "mover"
    program.write_text(FAILS_TO_START_AGAIN)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(ucx_moves, "_PAUSE_SECONDS", 0.0)
    moves = UcxMoves(Arena.create(1 << 20))
    moves._end(moves._process)
    starting = cast(Any, moves)._starting = Asked()
    refused: list[Unavailable] = []

    def use() -> None:
        try:
            moves._running()
        except Unavailable as error:
            refused.append(error)

    callers = [threading.Thread(target=use, daemon=True) for _ in range(4)]
    with starting.lock:
        for one in callers:
            one.start()
        assert eventually(lambda: len(starting.came) == 4)
    for one in callers:
        one.join(20.0)
    moves.close()
    assert len(refused) == 4
    assert (tmp_path / "again").read_text() == "again "
