"""What must hold of a node's blocks at any time: tests ask after each step, the simulation too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvstore.core.fingerprints import ON_SSD, fingerprint, tiers_of
from kvstore.core.lifecycle import Slot, State, Tier

if TYPE_CHECKING:
    from kvstore.node.blocks import Blocks


def check(blocks: Blocks) -> None:
    """Raise AssertionError, saying what, if tiers, heads, index and listing differ."""
    for slabs in blocks.in_memory:
        slabs.check()
    blocks.index.check()
    tiers = [*blocks.in_memory] + ([blocks.ssd] if blocks.ssd is not None else [])
    slots = [slot for tier in tiers for slab in tier.occupied() for slot in slab.slots.values()]
    for slot in slots:
        slot.check()
        assert blocks.slabs_of(slot).at(slot.offset) is slot, "a slot is not found at its offset"
        assert (slot in blocks.doomed) == (slot.state is State.DOOMED)
        assert slot not in blocks.arriving or slot.moves, "it may be taken while it arrives"
        if slot.state is State.DOOMED:
            assert slot.held, "a doomed slot that nobody holds was not freed"
        if slot.state is State.SEALED:
            held = blocks.index.held(slot.key)
            assert held in (slot, slot.twin), "sealed but not in the index"
            assert slot.twin is None or (held is not None and held.tier is Tier.DRAM)
            assert slot.tier is not Tier.HBM or held is slot, "in HBM, and somewhere else too"
        if slot.state is not State.EMPTY and slot.tier is not Tier.SSD:
            blocks.heads.check(slot)
    known = {id(slot) for slot in slots}
    filling = [one for one in slots if one.tier is not Tier.SSD and one.state is State.FILLING]
    assert blocks.filling == Counter(slot.key for slot in filling), "who fills what is miscounted"
    named = [*blocks.index, *blocks.doomed, *filling]
    assert all(id(slot) in known for slot in named), "a slot of a slab that changed owner"
    twins = sum(slot.twin is not None for slot in blocks.index)
    assert set(blocks.copied) == {slot for slot in blocks.index if slot.twin is not None}
    assert set(blocks.lent) == {slot for slot in blocks.index if slot.tier is Tier.HBM}
    _check_listing(blocks)
    _check_shares(blocks, slots)
    copies = sum(slot.tier is Tier.SSD and slot.state is State.FILLING for slot in slots)
    used = sum(slab.used for tier in tiers for slab in tier.occupied())
    known_used = len(named) + twins + copies + len(blocks.index.sleepers)
    assert used == known_used, "a free slot is not empty, or an empty one is not free"


def _check_listing(blocks: Blocks) -> None:
    listed = {fingerprint(slot.key): tiers_of(slot) for slot in blocks.index if slot.listed}
    listed |= dict.fromkeys(blocks.index.sleepers.listed_prints().tolist(), ON_SSD)
    assert dict(blocks.index.listing.items()) == listed, "followers are told what is not so"


def _check_shares(blocks: Blocks, awake: Sequence[Slot]) -> None:
    for tier in Tier:
        has = Counter[str](blocks.index.sleepers.bytes_of() if tier is Tier.SSD else {})
        for slot in awake:
            if slot.tier is tier:
                has[slot.tenant] += blocks.slabs_of(slot).slab_of(slot).slot_bytes
        assert +has == blocks.shares.used(tier), "a tenant's bytes are miscounted"
