"""What stands before blocks in retired slabs is found by one look at each of these, and at no more
than there is time for."""

from __future__ import annotations

import pytest

from kvstore.block import Chain, chain
from kvstore.core import before_retired as module
from kvstore.core.before_retired import before_retired
from kvstore.core.lifecycle import Slot
from tests.core.two_tiers import TwoTiers
from tests.node.rig import SLAB, SMALL, TOKENS, prompt, triples


def behind(blocks: int, number: int, start: int = 0) -> Chain:
    """A prompt that has so many blocks, and another one behind them."""
    own = range(1_000_000 + TOKENS * number, 1_000_000 + TOKENS * (number + 1))
    tokens = [*range(start, start + blocks * TOKENS), *own]
    return chain(SMALL.owner[0], SMALL.owner[1], tokens, TOKENS)


def put_behind(rig: TwoTiers, blocks: int, many: int, start: int = 0) -> list[Slot]:
    """So many blocks in DRAM alone, and behind the last of them many on SSD alone."""
    slots = rig.put(rig.writing, SMALL, prompt(SMALL, blocks * TOKENS, start))
    for number in range(many):
        for slot in rig.put_on_ssd(SMALL, behind(blocks, number, start), blocks):
            rig.blocks.leave_tier(slot)
    return slots


def looks(rig: TwoTiers, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Keys of the blocks that the index is asked for without waking them."""
    asked, peek = list[bytes](), rig.blocks.index.peek

    def asks(key: bytes) -> Slot | None:
        asked.append(key)
        return peek(key)

    monkeypatch.setattr(rig.blocks.index, "peek", asks)
    return asked


def test_what_many_blocks_stand_before_is_gone_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = TwoTiers(dram=6, ssd=9)
    put_behind(rig, 20, 32)
    rig.ssd.retire(0, 9 * SLAB)
    asked = looks(rig, monkeypatch)
    new = triples(prompt(SMALL, 16 * TOKENS, start=5_000))
    assert all(rig.store.reserve(rig.writing, SMALL, new, SMALL.layout.whole))
    assert len(asked) == len(set(asked)) == 32


def test_one_that_very_much_stands_behind_stays_and_leaves_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BEHIND_MAX", 8)
    monkeypatch.setattr(module, "_EACH_MIN", 1)
    rig = TwoTiers(dram=2, ssd=9)
    families = [5, 1, 0, 3, 2, 1, 1]
    some = [put_behind(rig, 1, many, start=100 * at)[0] for at, many in enumerate(families)]
    rig.ssd.retire(0, 9 * SLAB)
    asked = looks(rig, monkeypatch)
    found = list(before_retired(rig.blocks.index, rig.ssd, some, (), set()))
    assert found == [some[at] for at in (1, 2, 5, 6)], "also when nothing is left of the bound"
    assert len(asked) <= 8 + len(families)
