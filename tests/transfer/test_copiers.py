"""A large move shared by threads: every block is moved once, and nothing moves after the call."""

from __future__ import annotations

import threading
import time

import pytest

from kvstore.limits import COPY_SHARE_BYTES_MIN
from kvstore.transfer.copiers import Copiers

LARGE = 4 * COPY_SHARE_BYTES_MIN
WAIT_SECONDS = 20.0


@pytest.fixture
def copiers() -> Copiers:
    return Copiers(threads=3)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100])
def test_every_block_is_moved_once_and_answers_come_in_order(copiers: Copiers, count: int) -> None:
    runs = copiers.each(count, LARGE, lambda run: list(range(run.start, run.stop)))
    assert [row for run in runs for row in run] == list(range(count))
    assert len(runs) == max(1, min(3, count))
    copiers.close()


def test_a_small_move_is_the_callers_own_and_makes_no_thread(copiers: Copiers) -> None:
    before = set(threading.enumerate())
    who = copiers.each(100, 2 * COPY_SHARE_BYTES_MIN - 1, lambda _: threading.get_ident())
    assert who == [threading.get_ident()]
    assert set(threading.enumerate()) <= before


def test_several_threads_move_at_once(copiers: Copiers) -> None:
    together = threading.Barrier(3, timeout=WAIT_SECONDS)

    def move(_: slice) -> int:
        together.wait()
        return threading.get_ident()

    assert len(set(copiers.each(9, LARGE, move))) == 3
    copiers.close()


def test_one_thread_shares_nothing() -> None:
    assert Copiers(threads=1).each(9, LARGE, lambda run: run) == [slice(0, 9)]


@pytest.mark.parametrize("bad", [0, 3, 8])
def test_a_failure_is_raised_once_nothing_is_moving(copiers: Copiers, bad: int) -> None:
    moving = set[int]()

    def move(run: slice) -> None:
        moving.add(run.start)
        time.sleep(0.02)
        moving.remove(run.start)
        if run.start <= bad < run.stop:
            raise ValueError(bad)

    with pytest.raises(ValueError, match=str(bad)):
        copiers.each(9, LARGE, move)
    assert not moving
    copiers.close()


def test_a_move_does_not_wait_for_threads_that_are_busy_with_anothers(copiers: Copiers) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def long(_: slice) -> None:
        begun.release()
        assert go_on.wait(WAIT_SECONDS)

    other = threading.Thread(target=lambda: copiers.each(3, LARGE, long))
    other.start()
    for _ in range(3):
        assert begun.acquire(timeout=WAIT_SECONDS)
    assert copiers.each(3, LARGE, lambda run: threading.get_ident()) == [threading.get_ident()] * 3
    go_on.set()
    other.join(WAIT_SECONDS)
    copiers.close()


def test_where_no_thread_can_be_had_the_caller_moves_all_and_nothing_is_moved_later(
    copiers: Copiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refused)
        copiers.each(9, LARGE, lambda run: moved.extend(range(run.start, run.stop)))
    assert sorted(moved) == list(range(9))
    copiers.each(9, LARGE, lambda _: None)  # there are threads again: what stood in line is gone
    copiers.close()
    assert len(moved) == 9
