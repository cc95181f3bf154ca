"""Opening blocks by stored key, as nodes do, and what a node would lose for one more block."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.block import Miss
from kvstore.node.namespaces import Place
from kvstore.node.readers import Opened
from tests.node.rig import LARGE, SMALL, Rig, prompt


def test_a_block_is_opened_by_its_stored_key_for_its_own_tenant_and_place_alone() -> None:
    rig = Rig()
    blocks = prompt(SMALL, 8)
    rig.put(rig.session(), SMALL, blocks)
    keys = rig.store.keys("default", SMALL, blocks.hashes)

    def opened(tenant: str, place: Place, named: Sequence[bytes]) -> list[Opened | Miss]:
        owned = rig.store.owned(tenant, place, named)
        return rig.store.open_stored(rig.session(tenant), place, owned)

    mine = opened("default", SMALL, [*keys, b"x" * 32])
    assert [isinstance(one, Opened) for one in mine] == [True, True, False]
    assert mine[2] is Miss.ABSENT
    assert opened("other", SMALL, keys) == [Miss.ABSENT] * 2
    assert opened("default", LARGE, keys) == [Miss.ABSENT] * 2
    rig.store.check()


def test_what_is_removed_by_stored_key_is_its_own_tenants_alone() -> None:
    rig = Rig()
    blocks = prompt(SMALL, 8)
    rig.put(rig.session(), SMALL, blocks)
    keys = rig.store.keys("default", SMALL, blocks.hashes)
    assert rig.store.remove(rig.store.owned("other", SMALL, keys)) == set()
    assert rig.store.remove(rig.store.owned("default", SMALL, keys)) == set(keys)
    rig.store.check()


def test_one_more_block_costs_nothing_while_there_is_room_and_then_what_is_worth_least() -> None:
    rig = Rig()
    blocks, me, index = rig.blocks, rig.session(), rig.blocks.index
    where = (SMALL.owner, "default", SMALL.layout)
    assert blocks.would_lose(*where) is None
    slots = [slot for number in range(16) for slot in rig.put(me, SMALL, prompt(SMALL, 4, number))]
    assert blocks.slabs.room(SMALL.owner, SMALL.layout.slot_bytes) == 0
    assert blocks.would_lose(*where) == min(index.worth(slot)[0] for slot in slots)
