"""Room in one of two tiers, for blocks that are in the other one too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.slabs import Slabs
from kvstore.errors import Overloaded
from kvstore.node.namespaces import Place
from tests.core.two_tiers import TwoTiers
from tests.node.rig import LARGE, SLAB, SMALL, TOKENS, prompt


def test_a_slab_on_ssd_stays_while_a_reader_has_one_of_its_blocks_open_in_dram() -> None:
    rig = TwoTiers(dram=4, ssd=1)
    small = [prompt(SMALL, TOKENS, start=100 * number) for number in range(4)]
    for one in small:
        rig.put_on_ssd(SMALL, one)
    opened = rig.pinned(rig.writing, small[1].hashes[0])
    with pytest.raises(Overloaded):
        rig.put_on_ssd(LARGE, prompt(LARGE, TOKENS))
    assert [rig.hits(SMALL, one) for one in small] == [1] * 4
    rig.store.readers.unpin(rig.writing, [opened.handle])
    rig.put_on_ssd(LARGE, prompt(LARGE, TOKENS, start=500))
    assert [rig.hits(SMALL, one) for one in small] == [0] * 4


PROMPTS = [prompt(SMALL, 2 * TOKENS, start=100 * number) for number in range(8)]


def behind_retired(first_slab: int) -> TwoTiers:
    """DRAM is full of first blocks that are nowhere else; what is behind them is on SSD alone, of
    which the slabs from this one on are in service."""
    rig = TwoTiers(dram=2, ssd=8)
    for one in PROMPTS:
        rig.put_on_ssd(SMALL, one)
    rig.ssd.retire(0, first_slab * SLAB)
    for one in PROMPTS:
        rig.compute_again(one)
    assert [rig.hits(SMALL, one) for one in PROMPTS] == [2] * 8
    return rig


@pytest.mark.parametrize(("place", "gone"), [(SMALL, 1), (LARGE, 4)], ids=["its own", "another"])
def test_what_is_in_retired_files_keeps_nothing_before_it_in_dram_from_making_room(
    place: Place, gone: int
) -> None:
    rig = behind_retired(8)
    rig.put(rig.writing, place, prompt(place, TOKENS, start=5_000))
    assert [rig.hits(SMALL, one) for one in PROMPTS] == [0] * gone + [2] * (8 - gone)
    rig.put(rig.writing, SMALL, prompt(SMALL, 5 * TOKENS, start=6_000))
    assert sum(rig.hits(SMALL, one) for one in PROMPTS) < 2 * 4


def test_what_is_in_other_files_or_being_read_keeps_what_is_before_it_as_ever() -> None:
    rig = behind_retired(2)  # in which is what stands behind four of them
    (key,) = rig.store.keys("default", SMALL, PROMPTS[1].hashes[1:])
    read = rig.blocks.index.held(key)
    assert read is not None and read.tier is Tier.SSD
    read.moves += 1  # somebody waits for it
    rig.put(rig.writing, SMALL, prompt(SMALL, 3 * TOKENS, start=5_000))
    assert [rig.hits(SMALL, one) for one in PROMPTS] == [0, 2, 0, 0, *[2] * 4]
    with pytest.raises(Overloaded):
        rig.put(rig.writing, SMALL, prompt(SMALL, 4 * TOKENS, start=6_000))
    rig.blocks.let_go(read)
    rig.put(rig.writing, SMALL, prompt(SMALL, 4 * TOKENS, start=6_000))


def test_a_refusal_goes_through_what_others_have_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of each slab is held, so each is looked at. What is named as one that may go is not
    looked at again as one that only a retired file keeps."""
    rig = TwoTiers(dram=8, ssd=1)
    rig.ssd.retire(0, SLAB)
    for number in range(32):
        rig.put(rig.writing, SMALL, prompt(SMALL, TOKENS, start=100 * number))
    for slab in rig.blocks.slabs.occupied():
        slab.slots[0].moves += 1
    passed, coldest = list[Slot](), rig.blocks.index.coldest

    def passes(*which: Any, **of: Any) -> Iterator[Slot]:
        for slot in coldest(*which, **of):
            passed.append(slot)
            yield slot

    def looks(_index: Index, _ssd: Slabs, slots: Iterable[Slot], *_: Any) -> Iterator[Slot]:
        passed.extend(slots)
        return iter(())

    monkeypatch.setattr(rig.blocks.index, "coldest", passes)
    monkeypatch.setattr("kvstore.core.room.before_retired", looks)
    with pytest.raises(Overloaded):
        rig.put(rig.writing, LARGE, prompt(LARGE, TOKENS))
    assert len(passed) == len(set(passed)) == 24
