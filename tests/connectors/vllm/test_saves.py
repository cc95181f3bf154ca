"""What a step completes is stored, or a miss later; vLLM's worker goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, FixedAddress, Fragment, Invalid, Overloaded, Unavailable
from kvstore.engine.connectors.vllm.health import Health
from kvstore.engine.connectors.vllm.messages import Part, Save, Step
from kvstore.engine.connectors.vllm.saves import Saves, Window, gathered
from kvstore.engine.connectors.vllm.trace import Trace
from tests.nodes import SPEC

SOON = 30.0
HEALTH = Health("nowhere", Client(FixedAddress("nowhere:1"), SPEC))


@pytest.mark.parametrize("raised", [Unavailable("the node is gone"), KeyError(99)])
@pytest.mark.parametrize("hand_off", ["", "a name"])
def test_a_step_whose_blocks_cannot_be_reserved_goes_on(raised: Exception, hand_off: str) -> None:
    def writer(*_: object, **named: object) -> None:
        raise raised

    space = SimpleNamespace(layout=SimpleNamespace(block_tokens=64, whole="all"))
    facts = SimpleNamespace(layer_names=("0",), writes=True, page_tokens=32, window_tokens=0)
    client = SimpleNamespace(space=space, writer=writer)
    cache: Any = SimpleNamespace(facts=facts, client=client, fragment="all")
    saves = Saves((cache,), "engine", 1, SOON, HEALTH, Trace(""))
    part = Part(group=0, first=0, hashes=(b"h" * 32,), parent=b"", pages=(7, 8), last_tokens=64)
    saves.begin(Step(1, saves=[Save("a", (part,), hand_off)]))
    saves.layer("0")
    assert saves.end() == (0, {})
    saves.close()


@pytest.mark.parametrize(
    ("raised", "stored"),
    [
        (Invalid("writer_group is 2000 bytes"), ["fine", ""]),
        (KeyError(99), ["fine", ""]),
        (Unavailable("the node is gone"), []),
        (Overloaded("no room"), []),
    ],
)
def test_a_hand_off_that_is_refused_takes_nobody_else_s_blocks_with_it(
    raised: Exception, stored: list[str]
) -> None:
    given: list[str] = []

    def writer(*_: object, **named: Any) -> Sealing:
        if named["writer_group"] == "odd":
            raise raised
        given.append(named["writer_group"])
        return Sealing()

    layout = SimpleNamespace(block_tokens=64, whole=Fragment(0, 1, 0, 1))
    facts = SimpleNamespace(layer_names=("0",), writes=True, page_tokens=32, window_tokens=0)
    client = SimpleNamespace(space=SimpleNamespace(layout=layout), writer=writer)
    cache: Any = SimpleNamespace(
        facts=facts, client=client, fragment=layout.whole, memory=lambda pages: pages
    )
    saves = Saves((cache,), "engine", 1, SOON, HEALTH, Trace(""))
    saves.begin(
        Step(
            1,
            saves=[
                Save(str(number), (Part(0, 0, (bytes([number]) * 32,), b"", (7, 8), 64),), hand_off)
                for number, hand_off in enumerate(("odd", "fine", ""))
            ],
        )
    )
    assert saves.end() == (len(stored), {}) and given == stored
    saves.close()


def forgoing(
    order: list[str],
    reserve: Callable[[], None],
    forgo: Exception | None = None,
    writes: bool = True,
) -> Saves:
    """Says what it asks of the node, in which order."""

    def writer(*_: object, **named: Any) -> Sealing:
        reserve()
        order.append(f"reserved for {named['writer_group']}")
        return Sealing()

    def forgone(name: str) -> None:
        order.append(f"{name} is over")
        if forgo is not None:
            raise forgo

    layout = SimpleNamespace(block_tokens=64, whole=Fragment(0, 1, 0, 1))
    facts = SimpleNamespace(layer_names=("0",), writes=writes, page_tokens=32, window_tokens=0)
    space = SimpleNamespace(layout=layout)
    client = SimpleNamespace(space=space, writer=writer, forgo=forgone)
    cache: Any = SimpleNamespace(
        facts=facts, client=client, fragment=layout.whole, memory=lambda pages: pages
    )
    return Saves((cache,), "engine", 1, SOON, HEALTH, Trace(""))


HANDED = Save("a", (Part(0, 0, (b"h" * 32,), b"", (7, 8), 64),), "name")


def test_a_hand_off_is_over_for_its_followers_once_its_last_block_is_reserved() -> None:
    order: list[str] = []
    saves = forgoing(order, lambda: None)
    saves.begin(Step(1, saves=[HANDED], over=["name", "another"]))
    assert saves.end() == (1, {})
    saves.begin(Step(2, over=["a third"]))
    assert saves.end() == (0, {})
    saves.close()
    over = [f"{name} is over" for name in ("name", "another", "a third")]
    assert order == ["reserved for name", *over]


@pytest.mark.parametrize("refused", [False, True])
def test_the_end_of_a_hand_off_is_told_behind_a_reservation_that_comes_late_or_not_at_all(
    refused: bool,
) -> None:
    order, answers = list[str](), threading.Event()

    def late() -> None:
        assert answers.wait(SOON)
        if refused:
            raise Overloaded("no room")

    saves = forgoing(order, late)
    saves._wait_seconds = 0.01
    saves.begin(Step(1, saves=[HANDED]))
    assert saves.end() == (0, {"a": 0})
    saves.begin(Step(2, over=["name"]))  # the last step that there is
    assert saves.end() == (0, {}) and order == []
    answers.set()
    saves.close()
    assert order == [*(() if refused else ("reserved for name",)), "name is over"]


def test_a_rank_that_writes_nothing_says_nothing_of_ends() -> None:
    order: list[str] = []
    saves = forgoing(order, lambda: None, writes=False)
    saves.begin(Step(1, saves=[HANDED], over=["name"]))
    assert saves.end() == (0, {})
    saves.close()
    assert order == []


@pytest.mark.parametrize("raised", [Unavailable("the node is gone"), KeyError(99)])
def test_an_end_that_cannot_be_told_harms_no_step(raised: Exception) -> None:
    order: list[str] = []
    saves = forgoing(order, lambda: None, raised)
    saves.begin(Step(1, over=["one", "two"]))
    saves.begin(Step(2, saves=[HANDED]))
    assert saves.end() == (1, {})
    saves.begin(Step(3, over=["three"]))
    saves.close()
    assert order == ["one is over", "reserved for name", "two is over"], "one failure each time"
    again = ["three", "one", "two"] if isinstance(raised, Unavailable) else ["three"]
    assert sorted(saves._over) == sorted(again)


class Sealing:
    """A writer that stores or seals what it was given, or raises."""

    def __init__(self, put: Exception | None = None, seal: Exception | None = None) -> None:
        self._put, self._seal = put, seal
        self.granted, self.became = np.array([True]), "open"

    def put(self, *_: object) -> None:
        if self._put is not None:
            raise self._put

    def puts_fail_no_more(self) -> None:
        self._put = None

    def seal(self) -> None:
        if self._seal is not None:
            raise self._seal
        self.became = "sealed"

    def abort(self) -> None:
        self.became = "aborted"


@pytest.mark.parametrize("raised", [Unavailable("the node is gone"), KeyError(99)])
@pytest.mark.parametrize("where", ["put", "seal"])
def test_blocks_that_cannot_be_stored_are_let_go_and_others_are_sealed(
    raised: Exception, where: str
) -> None:
    writers = [Sealing(**{where: raised}), Sealing()]
    cache: Any = SimpleNamespace(
        memory=lambda pages: pages,
        fragment=Fragment(0, 1, 0, 1),
        facts=SimpleNamespace(layer_names=("0",)),
    )
    saves = Saves((cache,), "engine", 1, SOON, HEALTH, Trace(""))
    saves.begin(Step(1))
    saves._reserving = Future()
    saves._reserving.set_result([Window(one, cache, (7,)) for one in writers])  # type: ignore[arg-type]
    saves.end()
    saves.close()
    assert [one.became for one in writers] == ["aborted", "sealed"]


def test_what_fails_between_layers_is_not_tried_again_and_not_counted() -> None:
    first, second = Sealing(put=Unavailable("the node is gone")), Sealing()
    cache: Any = SimpleNamespace(
        memory=lambda pages: pages,
        fragment=Fragment(0, 2, 0, 1),
        facts=SimpleNamespace(layer_names=("0", "1")),
    )
    saves = Saves((cache,), "engine", 1, SOON, HEALTH, Trace(""))
    followed = Save("a", (), "a name")
    saves._reserving = Future()
    windows: Any = [Window(one, cache, (7,), followed) for one in (first, second)]  # type: ignore[arg-type]
    saves._reserving.set_result(windows)
    saves.layer("0")
    first.puts_fail_no_more()
    saves.layer("1")
    assert saves.end() == (1, {})
    saves.close()
    assert (first.became, second.became) == ("aborted", "sealed")


def test_a_short_last_block_is_not_taken_for_a_full_one_though_all_its_pages_are_there() -> None:
    part = Part(0, 0, (b"full", b"short"), b"", pages=(7, 8, 9, 10), last_tokens=48)
    blocks, pages = gathered([part], 64, 32, window=True)
    assert (blocks.hashes, pages) == ((b"full",), (7, 8))


def test_where_no_thread_can_be_started_a_step_s_blocks_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    facts = SimpleNamespace(layer_names=("0",), writes=True, page_tokens=32, window_tokens=0)
    cache: Any = SimpleNamespace(facts=facts, client=None, fragment="all")
    saves = Saves((cache,), "engine", 1, SOON, HEALTH, Trace(""))
    part = Part(group=0, first=3, hashes=(b"h" * 32,), parent=b"", pages=(7, 8), last_tokens=64)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        saves.connect()
        saves.begin(Step(1, saves=[Save("a", (part,))]))
    saves.layer("0")
    assert saves.end() == (0, {"a": 3})
    saves.close()
