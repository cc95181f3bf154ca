"""Readers are given what their tenant may hold of what they ask for; the rest is a miss."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.block import Chain, Miss
from kvstore.core.lifecycle import Tier
from kvstore.layout import Fragment
from kvstore.node.readers import Opened
from tests.node.rig import SMALL, TOKENS, Rig, prompt, triples

ROOM, MOST = 16, 12  # blocks; and of one tenant, where there is another
BLOCKS = prompt(SMALL, 14 * TOKENS)
FULL = [Miss.NO_ROOM] * 2


def rig_with(blocks: Chain, *tenants: str) -> Rig:
    """Blocks that are all in DRAM, and who there is beside their tenant."""
    rig = Rig()
    for first in range(0, len(blocks), 7):
        rig.put(rig.session(), SMALL, blocks, first, min(first + 7, len(blocks)))
    for name in tenants:
        rig.store.keys(name, SMALL, [])
    return rig


def opened(rig: Rig, hashes: Sequence[bytes]) -> tuple[list[Miss], list[bytes]]:
    """What could not be opened, all of it behind what could, and the handles of that."""
    found = rig.store.open(rig.session(), SMALL, hashes)
    handles = [one.handle for one in found if isinstance(one, Opened)]
    misses = [one for one in found[len(handles) :] if isinstance(one, Miss)]
    assert len(handles) + len(misses) == len(hashes)
    rig.store.check()
    return misses, handles


def test_of_a_prompt_above_what_its_tenant_may_hold_the_start_is_read() -> None:
    rig = rig_with(BLOCKS, "other")
    assert opened(rig, BLOCKS.hashes)[0] == FULL
    counts = rig.counters.totals()
    assert counts["open_hit_blocks"] == MOST and counts["open_miss_blocks.no_room"] == len(FULL)
    assert counts["overloaded"] == 0, "nobody was refused"
    assert rig.store.held.of("default") == MOST * SMALL.layout.slot_bytes
    misses, handles = opened(rig, BLOCKS.hashes)
    assert misses == FULL and len(handles) == MOST, "what is held already may be read by more"
    assert opened(rig, BLOCKS.hashes[MOST:])[0] == FULL
    assert len(rig.store.pins) == 2 * MOST


def test_who_is_alone_reads_all() -> None:
    assert opened(rig_with(BLOCKS), BLOCKS.hashes)[0] == []


def test_a_block_that_is_named_twice_counts_once_and_is_missed_twice() -> None:
    rig = rig_with(BLOCKS, "other")
    fit, beyond = BLOCKS.hashes[:MOST], BLOCKS.hashes[MOST:]
    misses, handles = opened(rig, [*fit, *fit, *beyond, *beyond])
    assert misses == FULL * 2 and len(handles) == 2 * MOST


def test_what_is_still_written_is_read_by_whose_tenant_holds_all_it_may() -> None:
    rig = rig_with(prompt(SMALL, 4 * TOKENS), "other")
    reader, blocks = rig.session(), prompt(SMALL, 8 * TOKENS, 500)
    alone = rig.reserve(rig.session(), SMALL, blocks, 0, 4)
    half = Fragment(0, 2, 0, 1)
    shared = rig.store.reserve(rig.session(), SMALL, triples(blocks, 4, 8), half, "tp2")
    assert len(opened(rig, prompt(SMALL, 4 * TOKENS).hashes)[1]) == 4
    assert rig.store.held.of("default") == MOST * SMALL.layout.slot_bytes
    hand_offs = [*map(rig.hand_off, alone), *[b""] * 4]
    found = rig.store.open(reader, SMALL, blocks.hashes, hand_offs, 0, "tp2")
    slots = [one.slot for one in found if isinstance(one, Opened)]
    assert slots == [one.slot for one in (*alone, *shared) if one]
    rig.store.check()


def test_hbm_is_read_behind_all_that_a_tenant_may_hold_of_dram() -> None:
    rig = Rig(hbm_slabs=1)
    above = prompt(SMALL, 4 * TOKENS, 500)
    rig.put(rig.session(mapped=True), SMALL, above, 0, 4, reach=Tier.HBM)
    for first in (0, 7):
        rig.put(rig.session(), SMALL, BLOCKS, first, first + 7)
    rig.store.keys("other", SMALL, [])
    keys = rig.store.keys("default", SMALL, [*BLOCKS.hashes, *above.hashes])
    found = rig.store.open_stored(rig.session(), SMALL, keys, reach=Tier.HBM)
    assert [one if isinstance(one, Miss) else one.slot.tier for one in found] == [
        *[Tier.DRAM] * MOST,
        *FULL,
        *[Tier.HBM] * 4,
    ]
    rig.store.check()
