"""Asking a node that is slow: each request has its answer in the end, and no hold is left."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.client import Chain, Client, FixedAddress, Miss
from kvstore.engine.connectors.vllm import lookup as module
from kvstore.engine.connectors.vllm.health import Health
from kvstore.engine.connectors.vllm.lookup import FRESH_SECONDS, NOTHING, Lookups
from tests.nodes import SPEC

SOON = 30.0  # it is there at once, where the machine is not busy
HEALTH = Health("nowhere", Client(FixedAddress("nowhere:1"), SPEC))


class SlowNode:
    """Answers a question once it is told to. Stands in for a client, and for what it holds."""

    def __init__(self) -> None:
        self.asked: list[Chain] = []
        self.held = 0
        self.told: list[tuple[int, int]] = []
        self.begun, self.may_answer = threading.Semaphore(0), threading.Semaphore(0)

    def hold(self, chain: Chain, pin_ms: int) -> Any:
        self.asked.append(chain)
        self.begun.release()
        assert self.may_answer.acquire(timeout=SOON)
        self.held += 1
        return SimpleNamespace(blocks=len(chain), miss=None, origins=(), release=self.release)

    def release(self) -> None:
        self.held -= 1

    def used(self, query_tokens: int, hit_tokens: int) -> None:
        self.told.append((query_tokens, hit_tokens))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: at[0]))
    return at


def catch_up(lookups: Lookups) -> None:
    """All that was to be done before is done."""
    done = threading.Event()
    assert lookups.later(done.set) and done.wait(SOON)


def chains(name: bytes) -> tuple[Chain, ...]:
    return (Chain((name * 32,), (64,), 64),)


def test_an_answer_is_waited_for_however_late_and_is_fresh_from_when_it_came(
    now: list[float],
) -> None:
    node: Any = SlowNode()
    lookups = Lookups((node,), (0,), 64, HEALTH)
    first, second = lookups.ask(chains(b"a"), 64), lookups.ask(chains(b"b"), 64)
    now[0] += 10 * FRESH_SECONDS
    assert first.result(0.0) is None and first.fresh and second.fresh, "neither is asked again"
    node.may_answer.release()
    assert first.result(SOON) is not None and first.fresh
    assert all(node.begun.acquire(timeout=SOON) for _ in (first, second)), "one after another"
    now[0] += FRESH_SECONDS
    assert not first.fresh and second.fresh
    node.may_answer.release()
    assert second.result(SOON) is not None
    lookups.close()


def test_a_node_that_answers_what_nobody_understands_is_a_miss() -> None:
    released = []

    def held(chain: Chain, pin_ms: int) -> Any:
        return SimpleNamespace(blocks=1, miss=None, origins=(), release=lambda: released.append(1))

    def odd(chain: Chain, pin_ms: int) -> Any:
        raise KeyError(99)  # as for a reason that a later version has

    clients: Any = (SimpleNamespace(hold=held), SimpleNamespace(hold=odd))
    lookups = Lookups(clients, (0, 0), 64, HEALTH)
    assert lookups.ask(2 * chains(b"a"), 64).result(SOON) == NOTHING
    lookups.close()
    assert released == [1]


def test_a_question_that_nobody_needs_any_more_is_not_asked_and_holds_nothing() -> None:
    node: Any = SlowNode()
    lookups = Lookups((node,), (0,), 64, HEALTH)
    asked, waiting = lookups.ask(chains(b"a"), 64), lookups.ask(chains(b"b"), 64)
    asked.drop(lookups)
    waiting.drop(lookups)
    node.may_answer.release()
    last = lookups.ask(chains(b"c"), 64)
    node.may_answer.release()
    assert last.result(SOON) is not None
    last.drop(lookups)
    catch_up(lookups)
    lookups.close()
    assert [one.hashes[0][:1] for one in node.asked] == [b"a", b"c"]
    assert node.held == 0


class Windows:
    """A node that has all blocks of a window's group, unless one goes before it is held."""

    def __init__(self, gone: bytes = b"") -> None:
        self.gone, self.held, self.let_go = gone, [], 0
        self.connection = SimpleNamespace(link=lambda: None)

    def exists_each(self, chain: Chain) -> list[bool]:
        return [True] * len(chain)

    def hold(self, chain: Chain, pin_ms: int) -> Any:
        blocks = chain.hashes.index(self.gone) if self.gone in chain.hashes else len(chain)
        self.held.append(chain.hashes)
        miss = None if blocks == len(chain) else Miss.EVICTED
        origins = tuple(one[0] for one in chain.hashes[:blocks])
        return SimpleNamespace(blocks=blocks, miss=miss, origins=origins, release=self.release)

    def release(self) -> None:
        self.let_go += 1


NAMES = tuple(bytes([number]) * 32 for number in range(8))


def test_of_a_window_only_what_a_hit_loads_is_held_and_is_let_go_with_it() -> None:
    node: Any = Windows()
    lookups = Lookups((node,), (100,), 64, HEALTH)
    asked = lookups.ask((Chain(NAMES, 8 * (64,), 64),), 8 * 64 - 1)
    found = asked.result(SOON)
    assert found is not None and found.tokens == 7 * 64
    assert node.held == [NAMES[5:7]], "a token after these sees 99 before itself"
    assert found.origins(0, 7) == {5, 6} and found.origins(6, 7) == {6}
    asked.drop(lookups)
    catch_up(lookups)
    lookups.close()
    assert node.let_go == 1


def test_where_a_block_of_a_window_goes_before_it_is_held_nothing_is_loaded() -> None:
    node: Any = Windows(gone=NAMES[6])
    lookups = Lookups((node,), (100,), 64, HEALTH)
    asked = lookups.ask((Chain(NAMES, 8 * (64,), 64),), 8 * 64 - 1)
    found = asked.result(SOON)
    assert found is not None and (found.tokens, found.miss) == (0, Miss.EVICTED)
    asked.drop(lookups)
    catch_up(lookups)
    lookups.close()
    assert node.let_go == 1


def test_of_windows_alone_too_a_node_that_is_not_there_is_told_from_one_that_has_none() -> None:
    nowhere = Client(FixedAddress("127.0.0.1:9"), SPEC)  # the discard port
    lookups = Lookups((nowhere,), (128,), 64, HEALTH)
    found = lookups.ask(chains(b"a"), 64).result(SOON)
    lookups.close()
    assert found is not None and found.miss is Miss.UNREACHABLE


def test_where_no_thread_can_be_started_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    node: Any = SlowNode()
    lookups = Lookups((node,), (0,), 64, HEALTH)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert lookups.ask((Chain((b"h" * 32,), (64,), 64),), 64).result(SOON) is NOTHING
    lookups.close()
    assert not node.asked


def test_what_is_used_while_the_node_is_busy_is_told_by_one_call() -> None:
    node: Any = SlowNode()
    lookups = Lookups((node,), (0,), 64, HEALTH)
    lookups.ask(chains(b"a"), 64)
    assert node.begun.acquire(timeout=SOON)
    for _ in range(3):
        lookups.used(100, 40)
    node.may_answer.release()
    catch_up(lookups)
    assert node.told == [(300, 120)]
    lookups.used(7, 0)
    catch_up(lookups)
    lookups.close()
    assert node.told == [(300, 120), (7, 0)]


def test_what_could_not_be_told_is_told_with_what_is_used_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node: Any = SlowNode()
    lookups = Lookups((node,), (0,), 64, HEALTH)
    with monkeypatch.context() as no_threads:
        no_threads.setattr(module, "later", lambda *_: None)
        lookups.used(100, 40)
    lookups.used(7, 0)
    catch_up(lookups)
    lookups.close()
    assert node.told == [(107, 40)]
