"""Calls that name thousands of blocks: others have turns between, and the answers are the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.block import Miss
from kvstore.errors import Overloaded, SessionEnded
from kvstore.node import claims, long_calls, readers
from kvstore.node.long_calls import LongCalls
from kvstore.node.readers import Opened
from kvstore.node.service import KVService
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SLAB, SMALL, TOKENS, Rig, prompt
from tests.node.tiered_rig import TieredRig
from tests.simulation.sim_disk import SimDisk

PART = 4
BLOCKS = prompt(SMALL, 10 * TOKENS)  # three parts
HERE = 8  # of them


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (long_calls, claims, readers):
        monkeypatch.setattr(module, "RPC_PART_KEYS", PART)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.put(rig.session(), SMALL, BLOCKS, 0, HERE)
    return rig


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(bounded())


def noting(said: list[str], who: str) -> Callable[[Sequence[int]], Sequence[int]]:
    def work(some: Sequence[int]) -> Sequence[int]:
        said.append(who)
        return [2 * one for one in some]

    return work


def test_all_are_asked_about_the_last_part_first_and_answered_in_order(rig: Rig) -> None:
    asked: list[int] = []

    def work(some: Sequence[int]) -> Sequence[int]:
        asked.extend(some)
        return [2 * one for one in some]

    long = LongCalls(rig.store, rig.sessions)
    assert run(long.over("a", range(10), work)) == [2 * one for one in range(10)]
    assert asked == [8, 9, 4, 5, 6, 7, 0, 1, 2, 3]


def test_the_loop_has_turns_for_others_between_and_one_part_of_all_calls_goes_on(rig: Rig) -> None:
    said: list[str] = []

    async def work() -> None:
        long = LongCalls(rig.store, rig.sessions)

        async def short() -> None:
            for _ in range(3):
                said.append("short")
                await asyncio.sleep(0)

        calls = [long.over("a", range(10), noting(said, "long")) for _ in range(5)]
        await asyncio.gather(*calls, short())

    run(work())
    assert said.count("long") == 5 * 3
    at = [i for i, one in enumerate(said) if one == "short"]
    assert max(b - a for a, b in pairwise(at)) <= 2, "one part between two turns"


def test_the_long_calls_of_tenants_go_on_in_turn(rig: Rig) -> None:
    said: list[str] = []

    async def work() -> None:
        long = LongCalls(rig.store, rig.sessions)
        many = [long.over("many", range(10), noting(said, "many")) for _ in range(5)]
        await asyncio.gather(*many, long.over("one", range(10), noting(said, "one")))

    run(work())
    assert sorted(said) == ["many"] * 15 + ["one"] * 3
    assert said[:9].count("one") == 3, "one of many's between two of its parts"


def test_a_call_that_is_given_up_leaves_its_turn_to_the_next(rig: Rig) -> None:
    async def work() -> None:
        long, said = LongCalls(rig.store, rig.sessions), list[str]()
        calls = [asyncio.create_task(long.over("a", range(99), noting(said, "a"))) for _ in "abc"]
        await asyncio.sleep(0)
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert await long.over("a", range(10), noting(said, "a")) == list(range(0, 20, 2))

    run(work())


def test_what_is_opened_in_parts_is_pinned_and_used_as_in_one(rig: Rig) -> None:
    session, other = rig.session(), Rig()
    other.put(other.session(), SMALL, BLOCKS, 0, HERE)
    keys = rig.store.keys("default", SMALL, BLOCKS.hashes)
    other.store.open_stored(other.session(), SMALL, keys)
    opened = run(LongCalls(rig.store, rig.sessions).open(session, SMALL, keys))
    assert [isinstance(one, Opened) for one in opened] == [True] * HERE + [False] * 2
    assert [one.slot.key for one in opened[:HERE]] == keys[:HERE]
    used = [list(one.blocks.index.recent()) for one in (rig, other)]
    assert used[0] == used[1], "a prompt's start is to stay the longest"
    rig.store.check()
    held, _ = rig.store.readers.close(session, [one.handle for one in opened[:HERE]])
    assert held == [True] * HERE and len(rig.store.pins) == 0


def test_what_is_here_as_a_long_open_comes_is_not_evicted_before_its_part_is_pinned() -> None:
    rig = TieredRig({"a": SimDisk(1, 64 * SLAB, random.Random(1))})
    old, room = BLOCKS.hashes[:HERE], 16 * 4  # slots
    session = rig.session()

    async def place(*_: Any) -> Any:
        return SMALL

    nobody: Any = None
    namespaces: Any = SimpleNamespace(place=place)
    told: Any = (rig.store, namespaces, rig.sessions, rig.counters, pb.SessionEvent.Opened())
    service = KVService(*told, nobody, rig.tiers)

    async def write() -> None:
        while not len(rig.store.pins):  # the call's last part is pinned, its first is not
            await asyncio.sleep(0)
        rig.put_some(99, PART)

    async def work() -> None:
        assert await rig.durable(rig.put(rig.writing, SMALL, BLOCKS, 0, HERE)) == ""
        for number in range(1, room // HERE):
            assert await rig.durable(rig.put_some(number, HERE)) == ""
        CALLER.set(Caller(Role.OPEN, "", "default"))
        call: Any = SimpleNamespace(time_remaining=lambda: None)
        asked = pb.OpenRequest(namespace=SMALL.owner[0], hashes=old, session=session.token)
        async with asyncio.timeout(20):
            opened, _ = await asyncio.gather(service.Open(asked, call), write())
        assert [*opened.outcomes] == [pb.HIT] * HERE

    rig.run(work)


def test_a_session_that_ends_between_two_parts_holds_nothing(rig: Rig) -> None:
    session = rig.session()
    keys = rig.store.keys("default", SMALL, BLOCKS.hashes)

    async def work() -> None:
        opening = asyncio.create_task(
            LongCalls(rig.store, rig.sessions).open(session, SMALL, keys[:HERE])
        )
        await asyncio.sleep(0)
        assert len(rig.store.pins) == PART
        rig.end(session)
        with pytest.raises(SessionEnded):
            await opening

    run(work())
    assert len(rig.store.pins) == 0
    rig.store.check()


def test_a_call_that_is_refused_in_a_later_part_holds_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "HOLDS_MAX", 9)  # of one tenant 6
    session, keys = rig.session(), rig.store.keys("default", SMALL, BLOCKS.hashes[:HERE])
    before = rig.all_there_is()
    with pytest.raises(Overloaded, match="4 pins of default"):
        run(LongCalls(rig.store, rig.sessions).open(session, SMALL, keys))
    assert rig.all_there_is() == before, "nor has it used or counted anything"
    rig.store.check()


@pytest.mark.parametrize(("held", "given"), [(0, 12), (6, 6), (11, 1), (12, 0)])
def test_of_what_a_tenant_may_not_hold_whole_its_first_parts_are_pinned(
    held: int, given: int
) -> None:
    rig, blocks = Rig(), prompt(SMALL, 16 * TOKENS)
    rig.put(rig.session(), SMALL, blocks)
    rig.store.keys("other", SMALL, [])
    session, keys = rig.session(), rig.store.keys("default", SMALL, blocks.hashes)
    rig.store.open_stored(session, SMALL, keys[16 - held :])
    before = rig.counters.totals()
    opened = run(LongCalls(rig.store, rig.sessions).open(session, SMALL, keys[: 16 - held]))
    assert len(opened) == given + 4
    assert [one for one in opened if isinstance(one, Miss)] == [Miss.NO_ROOM] * 4
    assert all(isinstance(one, Opened) for one in opened[:given])
    counts = rig.counters.totals()
    assert counts["open_hit_blocks"] - before["open_hit_blocks"] == given
    assert counts["open_miss_blocks.no_room"] == 4
    rig.store.check()


def test_what_callers_are_told_of_many_blocks_is_what_they_are_told_of_few(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def place(*_: Any) -> Any:
        return SMALL

    nobody: Any = None
    namespaces: Any = SimpleNamespace(place=place)
    service = KVService(
        rig.store, namespaces, rig.sessions, rig.counters, pb.SessionEvent.Opened(), nobody
    )
    session, answers = rig.session(), list[Any]()
    named = {"namespace": SMALL.owner[0], "hashes": BLOCKS.hashes}
    went: list[int] = []
    right = LongCalls._in_turn

    async def in_turn(self: LongCalls, who: str, parts: Sequence[Any], work: Any) -> Any:
        went.append(len(parts))
        return await right(self, who, parts, work)

    monkeypatch.setattr(LongCalls, "_in_turn", in_turn)

    async def ask() -> None:
        CALLER.set(Caller(Role.OPEN, "", "default"))
        call: Any = SimpleNamespace(time_remaining=lambda: None)
        match = await service.Match(pb.MatchRequest(**named), call)
        exists = await service.Exists(pb.ExistsRequest(**named), call)
        asked = {**named, "session": session.token}
        opened = await service.Open(pb.OpenRequest(**asked), call)
        pinned = await service.Pin(pb.PinRequest(**asked), call)
        handles = [one for one in (*opened.handles, *pinned.handles) if one]
        closed = await service.Close(pb.CloseRequest(session=session.token, handles=handles), call)
        outcomes = [[*one.outcomes] for one in (exists, opened, pinned)]
        answers.append((match.blocks, outcomes, [*opened.roots], [*closed.held]))

    run(ask())
    assert went == [3] * 8, "each looks at them in parts; two open them, and then use them"
    for module in (long_calls, claims, readers):
        monkeypatch.setattr(module, "RPC_PART_KEYS", 100)
    run(ask())
    assert answers[0] == answers[1]
    assert answers[0][0] == HERE and answers[0][3] == [True] * 2 * HERE

    async def remove() -> Any:
        CALLER.set(Caller(Role.OPEN, "", "default"))
        return await service.Remove(pb.RemoveRequest(**named), nobody)

    assert run(remove()).removed == HERE
    found = rig.store.exists("default", SMALL, BLOCKS.hashes)
    assert found == [Miss.REMOVED] * HERE + [Miss.ABSENT] * 2
