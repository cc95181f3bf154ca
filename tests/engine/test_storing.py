"""Storing what a step computes: what both ways promise, at once and beside the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvstore.engine.storing import (
    TOGETHER_BYTES,
    AtOnce,
    Beside,
    Storing,
    evenly,
    tapering,
)
from kvstore.errors import Unavailable

CPU = torch.device("cpu")


@pytest.fixture(params=[AtOnce, Beside])
def storing(request: pytest.FixtureRequest) -> Iterator[Storing]:
    made: Storing = request.param(CPU)
    yield made
    made.close()


def fails(_: Any) -> None:
    raise Unavailable("the node is gone")


def test_all_is_stored_in_order_by_the_time_it_is_settled(storing: Storing) -> None:
    stored: list[int] = []
    for number in range(50):
        storing.store("a", lambda _, number=number: stored.append(number))  # type: ignore[misc]
    assert storing.settle() == {}
    assert stored == list(range(50))


def test_a_request_that_fails_stores_no_more_of_the_step_and_others_do(storing: Storing) -> None:
    stored: list[str] = []
    for name, put in (
        ("a", stored.append),
        ("b", fails),
        ("b", stored.append),
        ("a", stored.append),
    ):
        storing.store(name, put)
    failed = storing.settle()
    assert list(failed) == ["b"] and "the node is gone" in str(failed["b"])
    assert len(stored) == 2


def test_what_is_settled_is_forgotten(storing: Storing) -> None:
    storing.store("a", fails)
    assert list(storing.settle()) == ["a"]
    stored: list[Any] = []
    storing.store("a", stored.append)
    assert storing.settle() == {} and len(stored) == 1


def broken(_: Any) -> None:
    raise ZeroDivisionError


def test_a_fault_of_the_engine_is_no_failure_of_the_pool(storing: Storing) -> None:
    def step(put: Callable[[Any], None]) -> None:
        storing.store("a", put)
        storing.settle()

    with pytest.raises(ZeroDivisionError):
        step(broken)
    step(lambda _: None)


def test_the_step_goes_on_while_what_it_computed_is_stored() -> None:
    storing, goes_on = Beside(CPU), threading.Event()
    waited: list[bool] = []
    storing.store("a", lambda _: waited.append(goes_on.wait(30.0)))
    goes_on.set()
    assert storing.settle() == {} and waited == [True]
    storing.close()


def test_the_next_step_is_told_before_what_this_one_stores_is_waited_for() -> None:
    storing, go, stored = Beside(CPU), [threading.Event() for _ in range(3)], list[int]()

    def step(number: int) -> None:
        storing.begin()

        def put(_: Any) -> None:
            assert go[number].wait(30.0)
            stored.append(number)

        storing.store("a", put)

    step(0)
    storing.stepped()  # waits for nothing: nothing was before
    assert not storing.idle and stored == []
    step(1)
    go[0].set()
    storing.stepped()
    assert stored == [0] and not storing.idle
    go[1].set(), go[2].set()
    step(2)
    assert storing.settle() == {} and stored == [0, 1, 2] and storing.idle
    storing.close()


def test_what_a_step_that_was_cut_short_stores_is_over_when_the_next_begins() -> None:
    storing, go, stored = Beside(CPU), threading.Event(), list[int]()
    storing.store("a", lambda _: stored.append(go.wait(30.0)))
    later = threading.Timer(0.05, go.set)
    later.start()
    storing.begin()
    assert stored == [True]
    later.join()
    storing.close()


def test_of_a_request_that_failed_nothing_is_stored_in_the_next_step_either() -> None:
    storing, stored = Beside(CPU), list[Any]()
    storing.store("a", fails)
    storing.stepped()
    storing.begin()
    storing.store("a", stored.append)
    storing.store("b", stored.append)
    storing.stepped()
    assert list(storing.settle()) == ["a"] and len(stored) == 1
    storing.close()


def test_where_no_thread_can_be_had_it_is_stored_all_the_same(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stored: list[int] = []
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refused)
        storing.store("a", lambda _: stored.append(1))
    storing.store("a", lambda _: stored.append(2))
    assert storing.settle() == {}
    assert stored == [1, 2]


def test_what_is_stored_at_once_goes_layer_by_layer_and_beside_the_step_by_bytes() -> None:
    beside = Beside(CPU)
    assert [AtOnce(CPU).layers(size) for size in (1, TOGETHER_BYTES)] == [1, 1]
    sizes = (TOGETHER_BYTES // 8, TOGETHER_BYTES, 3 * TOGETHER_BYTES)
    assert [beside.layers(size) for size in sizes] == [8, 1, 1]
    beside.close()


def test_groups_that_taper_get_shorter_towards_the_last_layer() -> None:
    assert [len(one) for one in tapering(32, 8)] == [8, 8, 8, 4, 2, 2]
    assert [len(one) for one in tapering(32, 32)] == [16, 8, 8]
    assert [len(one) for one in tapering(3, 1)] == [1, 1, 1]
    assert [len(one) for one in evenly(32, 12)] == [12, 12, 8]


@pytest.mark.parametrize("cut", [evenly, tapering])
def test_groups_have_every_layer_once_in_order_and_none_is_larger_than_it_may_be(
    cut: Callable[[int, int], Iterator[range]],
) -> None:
    for layers in range(1, 40):
        for most in (1, 2, 3, 5, 8, 40, 1000):
            each = list(cut(layers, most))
            assert [layer for one in each for layer in one] == list(range(layers))
            assert all(1 <= len(one) <= most for one in each)
