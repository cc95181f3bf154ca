"""Slots of blocks that come from other nodes: nobody takes them meanwhile, and what is purged
meanwhile does not come back by them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvstore.core.lifecycle import Slot, State
from kvstore.core.room import Room
from kvstore.node.delivery import Deliveries, Wanted
from kvstore.node.fetch import Fetch
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt

PLACE = (SMALL.owner, SMALL.layout)


def arriving(rig: Rig, start: int = 0) -> Slot:
    """There must be room for it."""
    key = rig.store.keys("default", SMALL, prompt(SMALL, TOKENS, start).hashes)[0]
    [slot] = rig.blocks.arriving.begin(*PLACE, [(key, b"", TOKENS)], "default", (), [0])
    rig.write(slot, SMALL)
    rig.store.check()
    return slot


def test_what_came_whole_is_readable_and_what_did_not_is_not() -> None:
    rig = Rig()
    whole, broken = arriving(rig, 0), arriving(rig, 100)
    rig.blocks.arriving.end([whole], SMALL.layout, whole=True)
    rig.blocks.arriving.end([broken], SMALL.layout, whole=False)
    rig.store.check()
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 0)) == 1
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 100)) == 0
    assert whole.state is State.SEALED and broken.state is State.EMPTY and not rig.blocks.arriving


def test_what_is_purged_while_it_comes_is_not_there_when_it_has_come() -> None:
    rig = Rig()
    purged, left = arriving(rig, 0), arriving(rig, 100)
    rig.store.expel(lambda slot: slot is purged)
    rig.store.check()
    assert purged.state is State.DOOMED, "its bytes are still being written"
    for slot in (purged, left):
        rig.blocks.arriving.end([slot], SMALL.layout, whole=True)
    rig.store.check()
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 0)) == 0
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 100)) == 1
    assert purged.state is State.EMPTY


def test_what_is_removed_while_it_comes_is_not_there_when_it_has_come() -> None:
    """Whoever brings it: what is followed layer by layer may have its seal before the removal."""
    rig, nobody = Rig(), cast(Any, None)
    fetch = Fetch(rig.blocks, rig.arena, nobody, nobody, rig.clock, rig.counters)
    removed, left = arriving(rig, 0), arriving(rig, 100)
    asyncio.run(fetch.forgo("other", [left.key]))
    asyncio.run(fetch.forgo("default", [removed.key]))
    rig.store.check()
    for slot in (removed, left):
        rig.blocks.arriving.end([slot], SMALL.layout, whole=True)
    rig.store.check()
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 0)) == 0
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 100)) == 1


def test_two_of_one_block_leave_one() -> None:
    rig = Rig()
    first, second = arriving(rig), arriving(rig)
    for slot in (first, second):
        rig.blocks.arriving.end([slot], SMALL.layout, whole=True)
    rig.store.check()
    assert first.state is State.SEALED and second.state is State.EMPTY


def test_a_slot_into_which_bytes_come_makes_room_for_nobody() -> None:
    rig = Rig(slabs=1)
    slots = [arriving(rig, 100 * i) for i in range(4)]
    assert not rig.blocks.arriving.begin(*PLACE, all_of(rig, 1)[1], "default", (), [0])
    for slot in slots:
        rig.blocks.arriving.end([slot], SMALL.layout, whole=False)
    rig.store.check()
    rig.blocks.arriving.end([arriving(rig, 900)], SMALL.layout, whole=True)


def room_looked_for(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many blocks, each time."""
    choose, counts = Room.choose, list[int]()

    def counted(self: Room, *given: Any) -> Any:
        counts.append(given[4])
        return choose(self, *given)

    monkeypatch.setattr(Room, "choose", counted)
    return counts


def all_of(rig: Rig, blocks: int) -> tuple[list[bytes], list[tuple[bytes, bytes, int]]]:
    """Keys of a prompt, and its blocks as another node tells of them."""
    keys = rig.store.keys("default", SMALL, prompt(SMALL, blocks * TOKENS, 900).hashes)
    return keys, [(key, before, TOKENS) for before, key in pairwise([b"", *keys])]


def test_room_for_all_that_comes_in_a_call_is_looked_for_once_whoever_computed_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    rig.put(rig.session(), SMALL, prompt(SMALL, 16 * TOKENS))
    counts = room_looked_for(monkeypatch)
    _, wanted = all_of(rig, 8)
    slots = rig.blocks.arriving.begin(*PLACE, wanted, "default", (), [*range(8)])
    assert counts == [8]
    rig.store.check()
    for slot in slots:
        rig.write(slot, SMALL)
        rig.blocks.arriving.end([slot], SMALL.layout, whole=True)
    rig.store.check()
    assert [slot.origin for slot in slots] == [*range(8)], "and so say their heads"


@pytest.mark.parametrize("free", [0, 1, 3, 8])
def test_the_first_come_where_there_is_no_room_for_all_and_that_counts_once(free: int) -> None:
    rig, held = Rig(), prompt(SMALL, 16 * TOKENS)
    rig.put(me := rig.session(), SMALL, held)
    for one in held.hashes[: 16 - free]:
        rig.pinned(me, one)
    keys, wanted = all_of(rig, 12)
    slots = rig.blocks.arriving.begin(*PLACE, wanted, "default", (), [0] * 12)
    assert [slot.key for slot in slots] == keys[:free]
    assert len(rig.blocks.arriving) == free and rig.counters.totals()["overloaded"] == 1
    for slot in slots:
        rig.blocks.arriving.end([slot], SMALL.layout, whole=False)
    rig.store.check()


def opened(wanted: list[tuple[bytes, bytes, int]]) -> pb.OpenReply:
    return pb.OpenReply(
        outcomes=[pb.HIT] * len(wanted),
        slot_offsets=[0] * len(wanted),
        generations=[1] * len(wanted),
        tokens=[tokens for *_, tokens in wanted],
        roots=[b""] * len(wanted),
        handles=[key for key, *_ in wanted],
        parents=[parent for _, parent, _ in wanted],
        origins=[0] * len(wanted),
    )


def test_a_holder_is_given_room_for_all_that_it_brings_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, nobody = Rig(), cast(Any, None)
    rig.put(rig.session(), SMALL, prompt(SMALL, 16 * TOKENS))
    counts = room_looked_for(monkeypatch)
    keys, blocks = all_of(rig, 8)
    to = Deliveries(rig.blocks, rig.arena, nobody, rig.clock, rig.counters)
    wanted = Wanted("default", SMALL, (), keys, frozenset(keys))
    link: Any = SimpleNamespace(node_id="holder")
    slots = to._targets(link, wanted, opened(blocks), [*range(2, 8)])
    assert [slot.key for slot in slots] == keys[2:] and counts == [6]
