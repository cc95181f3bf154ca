"""Slots of blocks that come from other nodes: nobody takes them meanwhile, and what is purged
meanwhile does not come back by them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kvstore.core.lifecycle import Slot, State
from kvstore.errors import Overloaded
from kvstore.node.fetch import Fetch
from tests.node.rig import SMALL, TOKENS, Rig, prompt

PLACE = (SMALL.owner, SMALL.layout)


def arriving(rig: Rig, start: int = 0) -> Slot:
    key = rig.store.keys("default", SMALL, prompt(SMALL, TOKENS, start).hashes)[0]
    slot = rig.blocks.arrive(*PLACE, (key, b"", TOKENS), "default", (), 0)
    rig.write(slot, SMALL)
    rig.store.check()
    return slot


def test_what_came_whole_is_readable_and_what_did_not_is_not() -> None:
    rig = Rig()
    whole, broken = arriving(rig, 0), arriving(rig, 100)
    rig.blocks.arrived(whole, SMALL.layout, whole=True)
    rig.blocks.arrived(broken, SMALL.layout, whole=False)
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
        rig.blocks.arrived(slot, SMALL.layout, whole=True)
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
        rig.blocks.arrived(slot, SMALL.layout, whole=True)
    rig.store.check()
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 0)) == 0
    assert rig.hits(SMALL, prompt(SMALL, TOKENS, 100)) == 1


def test_two_of_one_block_leave_one() -> None:
    rig = Rig()
    first, second = arriving(rig), arriving(rig)
    for slot in (first, second):
        rig.blocks.arrived(slot, SMALL.layout, whole=True)
    rig.store.check()
    assert first.state is State.SEALED and second.state is State.EMPTY


def test_a_slot_into_which_bytes_come_makes_room_for_nobody() -> None:
    rig = Rig(slabs=1)
    slots = [arriving(rig, 100 * i) for i in range(4)]
    with pytest.raises(Overloaded):
        arriving(rig, 900)
    for slot in slots:
        rig.blocks.arrived(slot, SMALL.layout, whole=False)
    rig.store.check()
    rig.blocks.arrived(arriving(rig, 900), SMALL.layout, whole=True)
