"""Loads and what they wait for: who had their pages, and prefills that are followed."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.client import Client, FixedAddress, Miss
from kvstore.engine.connectors.vllm import loads as module
from kvstore.engine.connectors.vllm.health import Health
from kvstore.engine.connectors.vllm.loads import Came, Loads
from kvstore.engine.connectors.vllm.messages import Adapter, Load, Loaded, Part
from kvstore.engine.connectors.vllm.trace import Trace
from tests.nodes import SPEC

SECONDS = 20.0
HEALTH = Health("nowhere", Client(FixedAddress("nowhere:1"), SPEC))
PART = Part(group=0, first=0, hashes=(b"hash",), parent=b"", pages=(7,), last_tokens=4)


def caches(told: Any = None) -> Any:
    return (SimpleNamespace(told=lambda: told, facts=SimpleNamespace(page_tokens=4)),)


class Ordered(Loads):
    """Says when a load would write, after what its caches say of the device."""

    def __init__(self, order: list[str]) -> None:
        self.order = order
        super().__init__(caches(self), 1, 1.0, HEALTH, Trace(""))

    def synchronize(self) -> None:
        self.order.append("the device has done what it was told")

    def _load(self, load: Load, part: Part, asked: float) -> Came:
        self.order.append("pages are written")
        return Came(load.end, 1)


def test_no_page_is_written_before_the_device_is_done_with_who_had_it() -> None:
    order: list[str] = []
    loads = Ordered(order)
    loads.start(Load("a", 0, 4, (PART,)))
    loads.close()
    assert order == ["the device has done what it was told", "pages are written"]
    assert loads.finished(0.0)["a"].good == 4 and not loads.bad_pages()


@pytest.mark.parametrize("stands", [(True, True), (False,), (True, False)])
def test_what_is_of_weights_that_are_found_no_more_is_not_good(
    monkeypatch: pytest.MonkeyPatch, stands: tuple[bool, ...]
) -> None:
    """As it begins, or by its end."""
    answers, order = iter(stands), list[str]()
    monkeypatch.setattr(module, "LOADED", SimpleNamespace(stands=lambda _: next(answers)))
    loads = Ordered(order)
    adapter = Adapter(1, "a", "/a", "00")
    loads.start(Load("a", 0, 4, (PART,), adapter=adapter))
    loads.close()
    loaded = loads.finished(0.0)["a"]
    assert (loaded.good, loaded.stale) == ((4, None) if all(stands) else (0, adapter))
    assert loads.bad_pages() == (set() if all(stands) else {7})
    assert ("pages are written" in order) is stands[0]


class Copied:
    """A cache of a device, and scratch memory of it, from which a block goes to vLLM's own pages
    some time after it was told to."""

    memory = None

    def __init__(self) -> None:
        self.order: list[str] = []
        self.facts = SimpleNamespace(page_tokens=2, window_tokens=0)
        layout = SimpleNamespace(block_tokens=4)
        self.client = SimpleNamespace(
            space=SimpleNamespace(layout=layout), load_each=lambda *_: [True]
        )

    def scratch(self, pages: int) -> Copied:
        return self

    def told(self) -> Copied:
        return self

    def copy_to(self, pages: object, first: int) -> None:
        self.order.append("told to copy")

    def synchronize(self) -> None:
        self.order.append("done")


def test_the_half_of_a_block_that_vllm_lacks_is_there_once_its_load_is_over() -> None:
    cache: Any = Copied()
    loads = Loads((cache,), 1, 1.0, HEALTH, Trace(""))
    half = Part(group=0, first=0, hashes=(b"hash",), parent=b"", pages=(7, 8), last_tokens=4)
    loads.start(Load("a", 2, 4, (half,)))
    came = loads.finished(SECONDS)
    loads.close()
    assert came["a"].good == 4
    assert cache.order[-2:] == ["told to copy", "done"]


class Slow(Loads):
    """A load writes to its pages until it may end, and looks up only then."""

    def __init__(self) -> None:
        self.writes, self.may_end = threading.Event(), threading.Event()
        self.ended_early: list[bool] = []
        super().__init__(caches(), 1, 1.0, HEALTH, Trace(""))

    def _load(self, load: Load, part: Part, asked: float) -> Came:
        self.writes.set()
        assert self.may_end.wait(SECONDS)
        self.ended_early.append(self._ending)
        return Came(load.begin, 0) if self._ending else Came(load.end, 1)


def test_no_page_is_written_to_once_loads_are_drained_and_later_ones_run_as_before() -> None:
    loads, drained = Slow(), threading.Event()
    loads.start(Load("under way", 0, 4, (PART,)))
    loads.start(Load("in line", 0, 4, (PART,)))
    assert loads.writes.wait(SECONDS)
    thread = threading.Thread(target=lambda: (loads.drain(), drained.set()))
    thread.start()
    assert not drained.wait(0.05)
    loads.may_end.set()
    assert drained.wait(SECONDS) and loads.ended_early == [True, True]
    assert {name: one.good for name, one in loads.finished(0.0).items()} == {
        "under way": 0,
        "in line": 0,
    }
    loads.start(Load("later", 0, 4, (PART,)))
    assert loads.finished(SECONDS)["later"].good == 4
    loads.close()
    thread.join()


class Waiting(Loads):
    """Whoever follows waits until something that is stored has been loaded."""

    def __init__(self) -> None:
        self.loaded = threading.Event()
        super().__init__(caches(), 1, 1.0, HEALTH, Trace(""))

    def _load(self, load: Load, part: Part, asked: float) -> Came:
        if load.follow:
            return Came(load.end if self.loaded.wait(SECONDS) else load.begin, 1)
        self.loaded.set()
        return Came(load.end, 1)


def test_who_follows_a_prefill_that_does_not_come_keeps_nobody_from_what_is_stored() -> None:
    loads = Waiting()
    loads.start(Load("follows", 0, 4, (PART,), follow="nothing"))
    loads.start(Load("loads", 0, 4, (PART,)))
    came: dict[str, Loaded] = {}
    while len(came) < 2:
        came |= loads.finished(SECONDS)
    loads.close()
    assert came["follows"].good == came["loads"].good == 4
    assert came["follows"].follows and not came["loads"].follows


class Opened:
    """Stands for a reader, and for the client that opens it: some blocks, and why no more."""

    layers = 1
    done = True

    def __init__(self, *rounds: tuple[int, Miss | None]) -> None:
        self._rounds, self.asked = list(rounds), 0
        self.space = SimpleNamespace(layout=SimpleNamespace(block_tokens=4))

    def reader(self, *_: object, **__: object) -> Opened:
        self.asked += 1
        if len(self._rounds) > 1:
            self.blocks, self.miss = self._rounds.pop(0)
        else:
            [(self.blocks, self.miss)] = self._rounds
        return self

    def wait(self, *_: object) -> None: ...

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("rounds", "good", "asked"),
    [
        ([(0, Miss.ABSENT), (0, Miss.ABSENT), (1, None), (1, None)], 8, 4),
        ([(0, Miss.FORGONE)], 0, 1),
        ([(0, Miss.QUARANTINED)], 0, 1),
        ([(0, Miss.UNSEALED), (0, Miss.FORGONE)], 0, 2),
        ([(0, Miss.ABSENT), (1, Miss.FORGONE), (0, Miss.FORGONE)], 4, 3),
        ([(1, Miss.FORGONE), (1, None)], 8, 2),
    ],
)
def test_a_prefill_that_says_it_is_over_is_not_waited_for(
    rounds: list[tuple[int, Miss | None]], good: int, asked: int
) -> None:
    client: Any = Opened(*rounds)
    facts = SimpleNamespace(page_tokens=4, window_tokens=0)
    cache: Any = SimpleNamespace(
        client=client, facts=facts, memory=lambda pages: pages, told=lambda: None
    )
    loads = Loads((cache,), 1, 10 * SECONDS, HEALTH, Trace(""))
    two = Part(group=0, first=0, hashes=(b"1", b"2"), parent=b"", pages=(7, 8), last_tokens=4)
    loads.start(Load("a", 0, 8, (two,), follow="name"))
    came = loads.finished(SECONDS)
    loads.close()
    assert (came["a"].good, client.asked) == (good, asked)


def test_a_load_for_which_no_thread_can_be_started_has_failed_and_writes_to_no_page_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    loads = Ordered(order)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        loads.start(Load("a", 0, 4, (PART,)))
    assert loads.finished(SECONDS) == {"a": Loaded(0, 0, 4, 0.0)}
    assert loads.bad_pages() == {7} and loads.failed() == {"a"}
    loads.start(Load("b", 0, 4, (PART,)))
    loads.close()
    assert order == ["the device has done what it was told", "pages are written"], "for b alone"


@pytest.mark.parametrize(
    ("rounds", "windowed", "good", "came"),
    [
        ((4, None), (True, True), 16, 16),
        ((4, None), (False, True), 0, 13),
        ((3, Miss.EVICTED), (True, True), 12, 13),
        ((0, Miss.EVICTED), (True, True), 0, 5),
    ],
)
def test_what_came_is_told_by_the_block_also_where_one_that_is_lost_spoils_all_others(
    rounds: tuple[int, Miss | None], windowed: tuple[bool, ...], good: int, came: int
) -> None:
    """Of one group with all that is before and of one with a window."""
    client: Any = Opened(rounds)
    client.load_each = lambda *_: windowed
    each: list[Any] = [
        SimpleNamespace(
            client=client,
            facts=SimpleNamespace(page_tokens=4, window_tokens=tokens),
            fragment=SimpleNamespace(layers=1, heads=1),
            memory=lambda pages: pages,
            told=lambda: None,
        )
        for tokens in (0, 9)
    ]
    client.space.layout.strips = 1
    loads = Loads(tuple(each), 1, SECONDS, HEALTH, Trace(""))
    names = tuple(bytes([number]) for number in range(4))
    whole = Part(group=0, first=0, hashes=names, parent=b"", pages=(0, 1, 2, 3), last_tokens=4)
    last = replace(whole, group=1, first=2, hashes=names[2:])
    loads.start(Load("a", 0, 16, (whole, last)))
    one = loads.finished(SECONDS)["a"]
    loads.close()
    assert (one.good, one.tokens, one.came) == (good, good, came)
