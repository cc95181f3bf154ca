"""Blocks in HBM that a node lends: where they are put, when they go down to DRAM, and what goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from kvstore.block import Miss
from kvstore.core.fingerprints import IN_DRAM, IN_HBM, fingerprints
from kvstore.core.lifecycle import State, Tier
from kvstore.core.shares import Share
from kvstore.errors import Overloaded
from kvstore.memory.strips import StripWriter
from kvstore.metadata.protocol import Metadata
from kvstore.node.moves import Moves
from kvstore.node.purge import Purge, Scope
from kvstore.node.read_ahead import _leading as leading
from kvstore.node.readers import Opened
from kvstore.node.scrubber import Scrubber
from kvstore.node.sessions import Session
from kvstore.transfer.frames import Status
from tests.node.lender import LAYOUTS, PER_SLAB, Lender, lent
from tests.node.rig import SMALL, TOKENS, prompt
from tests.simulation.nature import Notes


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_writer_that_reaches_it_is_given_what_is_free_there_for_the_first_blocks() -> None:
    async def story(rig: Lender) -> None:
        slots = rig.put_some(1, 6, reach=Tier.HBM)
        assert [slot.tier for slot in slots] == [Tier.HBM] * 4 + [Tier.DRAM] * 2
        assert all(slot.offset >= rig.arena.size for slot in slots[:4])
        assert [slot.tier for slot in rig.put_some(2, 2, reach=Tier.DRAM)] == [Tier.DRAM] * 2
        assert rig.hits(SMALL, prompt(SMALL, 6 * TOKENS, start=1_000)) == 6

    lent(story, serve=False, hbm_slabs=1)


def test_a_quota_is_of_this_tier_too() -> None:
    async def story(rig: Lender) -> None:
        most = 3 * SMALL.layout.slot_bytes
        rig.blocks.shares.granted["default"] = Share(bytes_max=most)
        assert [slot.tier for slot in rig.put_some(1, 4)] == [Tier.HBM] * 3 + [Tier.DRAM]
        assert [slot.tier for slot in rig.put_some(2, 2)] == [Tier.DRAM] * 2

    lent(story, serve=False)


def test_who_reaches_it_reads_there_and_for_others_it_is_brought_to_dram() -> None:
    async def story(rig: Lender) -> None:
        slots, keys = rig.put_some(1), rig.keys(1)
        told = [rig.read(slot, SMALL) for slot in slots]
        assert rig.opened(keys, Tier.DRAM) == [Miss.NO_ROOM] * 4
        near = rig.opened(keys, Tier.HBM)
        assert [one.slot for one in near if isinstance(one, Opened)] == slots
        async with rig.hbm.brought(keys):
            opened = rig.opened(keys, Tier.DRAM)
            assert rig.tiers(keys) == [Tier.DRAM] * 4
        assert [rig.read(one.slot, SMALL) for one in opened if isinstance(one, Opened)] == told
        assert rig.count("demoted_blocks") == 4
        assert all(slot.state is State.DOOMED for slot in slots), "its readers have it still"
        rig.end(rig.writing)
        assert all(slot.state is State.EMPTY for slot in slots)

    lent(story, serve=False)


def test_what_is_worth_least_goes_down_until_some_is_free_and_none_is_lost() -> None:
    async def story(rig: Lender) -> None:
        first = rig.keys(1)
        for number in range(1, 5):
            rig.put_some(number)
        # An eighth of 16 places is to be free: the least recently used two blocks go.
        await until(lambda: rig.hbm.left == 14)
        assert rig.tiers(first) == [Tier.HBM] * 2 + [Tier.DRAM] * 2
        rig.blocks.touch(first)
        rig.put_some(5, 2)
        await until(lambda: rig.hbm.left == 14)
        assert rig.tiers(rig.keys(2)) == [Tier.HBM] * 2 + [Tier.DRAM] * 2
        assert rig.tiers(first) == [Tier.HBM] * 2 + [Tier.DRAM] * 2
        assert rig.count("evicted_blocks") == 0

    lent(story)


def test_what_somebody_holds_stays_there() -> None:
    async def story(rig: Lender) -> None:
        keys = rig.keys(1)
        rig.put_some(1)
        assert rig.opened(keys, Tier.HBM)
        for number in range(2, 5):
            rig.put_some(number)
        await until(lambda: rig.hbm.left == 14)
        assert rig.tiers(keys) == [Tier.HBM] * 4
        assert rig.tiers(rig.keys(2)) == [Tier.HBM] * 2 + [Tier.DRAM] * 2

    lent(story)


def test_what_was_held_while_it_was_to_go_goes_once_it_is_let_go() -> None:
    """Nothing new would come to remind of it: there is no place for it."""

    async def story(rig: Lender) -> None:
        keys = [key for number in range(1, 3) for key in rig.keys(number)]
        rig.put_some(1)
        reader = rig.session()
        assert rig.store.open_stored(reader, SMALL, rig.keys(1), reach=Tier.HBM)
        slots = rig.put_some(2)
        assert rig.store.open_stored(reader, SMALL, rig.keys(2), reach=Tier.HBM)
        await asyncio.sleep(0.01)
        assert rig.tiers(keys) == [Tier.HBM] * 8 and slots[0].held
        assert [slot.tier for slot in rig.put_some(3, 1)] == [Tier.DRAM]
        rig.end(reader)
        await until(lambda: rig.hbm.left == 7)
        assert [slot.tier for slot in rig.put_some(4, 1)] == [Tier.HBM]

    lent(story, hbm_slabs=2)


def test_where_dram_is_full_of_what_is_held_the_ends_of_prompts_go() -> None:
    async def story(rig: Lender) -> None:
        held = rig.put_some(9, PER_SLAB, reach=Tier.DRAM)
        assert rig.opened([slot.key for slot in held], Tier.DRAM)
        for number in range(1, 3):
            rig.put_some(number)
        await until(lambda: rig.hbm.left == 7)
        assert rig.tiers(rig.keys(1)) == [Tier.HBM] * 3 + [None]
        assert rig.count("evicted_blocks") == 1 and rig.count("demoted_blocks") == 0
        assert rig.store.exists("default", SMALL, [prompt(SMALL, 16, start=1_000).hashes[3]]) == [
            Miss.EVICTED
        ]

    lent(story, slabs=1, hbm_slabs=2)


def test_what_a_tenant_cannot_bring_down_costs_no_other_a_block() -> None:
    """It is at its quota in DRAM, with what stands behind its coldest block in HBM."""

    async def story(rig: Lender) -> None:
        other, chain = rig.session("other"), prompt(SMALL, 2 * TOKENS, start=9_000)
        (above,) = rig.put(other, SMALL, chain, last=1, reach=Tier.HBM)
        rig.put(other, SMALL, chain, first=1, reach=Tier.DRAM)
        rig.pinned(other, chain.hashes[1])
        rig.blocks.shares.granted = {"other": Share(bytes_max=SMALL.layout.slot_bytes)}
        for number in range(1, 5):
            rig.put_some(number)
        await until(lambda: rig.hbm.left == 14)
        assert above.tier is Tier.HBM and above.state is State.SEALED
        assert rig.count("demoted_blocks") == 2 and rig.count("evicted_blocks") == 0

    lent(story)


def test_a_prompt_whose_start_fills_dram_gives_way_from_its_end() -> None:
    """What stands before blocks in HBM cannot go from DRAM; so those go first."""

    async def story(rig: Lender) -> None:
        chain = prompt(SMALL, 8 * TOKENS, start=1_000)
        rig.put(rig.writing, SMALL, chain, last=4, reach=Tier.DRAM)
        rig.put(rig.writing, SMALL, chain, first=4, reach=Tier.HBM)
        with pytest.raises(Overloaded):
            rig.put_some(2, 1, reach=Tier.DRAM)
        await until(lambda: rig.hbm.left == 3)
        rig.hbm.empty()
        await until(lambda: rig.hbm.left == 0)
        assert len(rig.put_some(2, 1, reach=Tier.DRAM)) == 1

    lent(story, slabs=1, hbm_slabs=1)


def test_when_it_is_to_be_empty_all_goes_down() -> None:
    async def story(rig: Lender) -> None:
        rig.put_some(1)
        await asyncio.sleep(0)
        assert rig.hbm.left == 4
        rig.hbm.empty()
        await until(lambda: rig.hbm.left == 0)
        assert rig.tiers(rig.keys(1)) == [Tier.DRAM] * 4
        assert rig.blocks.hbm is not None and rig.blocks.hbm.empty_slabs == 4

    lent(story)


@pytest.mark.parametrize("where", ["payload", "table"])
def test_a_block_that_is_damaged_there_is_not_read_in_dram(where: str) -> None:
    async def story(rig: Lender) -> None:
        slots, keys = rig.put_some(1), rig.keys(1)
        at = SMALL.layout.head_bytes + 5 if where == "payload" else 256
        rig.arena.bytes[slots[1].offset + at] ^= 4
        async with rig.hbm.brought(keys):
            found = rig.opened(keys, Tier.DRAM)
        assert [isinstance(one, Miss) for one in found] == [False, True, True, True]
        assert found[1] is Miss.DAMAGED
        assert rig.count("damaged_blocks") == 1 and rig.count("demoted_blocks") == 3

    lent(story, serve=False)


def test_a_block_that_was_written_over_whole_is_not_what_was_sealed() -> None:
    async def story(rig: Lender) -> None:
        slots, keys = rig.put_some(1, 2), rig.keys(1, 2)
        layout = SMALL.layout
        other = np.random.default_rng(99).bytes(layout.block_bytes(TOKENS))
        over = StripWriter(rig.blocks.view, rig.blocks.heads, slots[1], layout, layout.whole)
        over.write(other)  # its table speaks of these bytes too
        async with rig.hbm.brought(keys):
            assert rig.opened(keys, Tier.DRAM)[1] is Miss.DAMAGED

    lent(story, serve=False)


def test_the_node_believes_who_doubts_a_block_there() -> None:
    async def story(rig: Lender) -> None:
        slots = rig.put_some(1)
        assert not rig.blocks.examine(slots[0], SMALL.layout)
        assert rig.blocks.find(slots[0].key) is Miss.DAMAGED or slots[0].state is State.EMPTY
        assert rig.count("damaged_blocks") == 1

    lent(story, serve=False)


def test_what_is_dropped_on_its_way_down_is_nowhere() -> None:
    async def story(rig: Lender) -> None:
        keys = rig.keys(1)
        rig.put_some(1)

        def drop() -> None:
            rig.store.remove(keys)

        copy, loop = rig.copy, asyncio.get_running_loop()

        def dropping(*what: int) -> None:
            asyncio.run_coroutine_threadsafe(_called(drop), loop).result(10.0)
            copy(*what)

        rig.copy = dropping  # type: ignore[method-assign]
        rig.begin()
        async with rig.hbm.brought(keys):
            assert rig.opened(keys, Tier.DRAM) == [Miss.REMOVED] * 4
        assert rig.hbm.left == 0 and rig.count("demoted_blocks") == 0

    lent(story, serve=False)


async def _called(call: Callable[[], None]) -> None:
    call()


def test_a_session_that_ends_gives_back_what_it_was_writing_there() -> None:
    async def story(rig: Lender) -> None:
        session: Session = rig.session()
        chain = prompt(SMALL, 4 * TOKENS, start=5_000)
        rig.reserve(session, SMALL, chain, reach=Tier.HBM)
        assert rig.blocks.hbm is not None and rig.blocks.hbm.empty_slabs == 3
        rig.end(session)
        assert rig.blocks.hbm.empty_slabs == 4
        assert not rig.blocks.shares.used(Tier.HBM)

    lent(story, serve=False)


def test_the_scrubber_passes_it_over_and_a_purge_does_not() -> None:
    async def story(rig: Lender) -> None:
        slots = rig.put_some(1, 2) + rig.put_some(2, 1, reach=Tier.DRAM)
        rig.flip(slots[0], SMALL)
        scrub = Scrubber(rig.blocks, None, LAYOUTS.__getitem__, rig.clock, rig.counters, 0)
        rounds = [one async for one in scrub.round(0)]
        assert (rounds[-1].blocks_done, rounds[-1].damaged) == (3, 0)
        assert rounds[-1].bytes_done == SMALL.layout.slot_bytes
        assert rig.hits(SMALL, prompt(SMALL, 2 * TOKENS, start=1_000)) == 2
        metadata = cast(Metadata, Notes())
        purge = Purge(rig.store, metadata, None, "n", 0, rig.clock, rig.counters)
        assert await purge.carry_out(Scope(tenant="default")) == 3
        assert rig.hbm.left == 0 and rig.blocks.hbm is not None
        assert rig.blocks.hbm.empty_slabs == 4

    lent(story, serve=False)


def test_followers_are_told_of_it_as_a_tier_of_its_own() -> None:
    async def story(rig: Lender) -> None:
        keys = rig.keys(1)
        rig.put_some(1)
        listing, prints = rig.blocks.index.listing, fingerprints(keys)
        assert listing.tiers(prints).tolist() == [IN_HBM] * 4
        async with rig.hbm.brought(keys):
            assert listing.tiers(prints).tolist() == [IN_DRAM] * 4

    lent(story, serve=False)


def test_a_gpu_that_is_lost_costs_what_is_there_and_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(rig: Lender) -> None:
        def fails(*what: int) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        rig.copy = fails  # type: ignore[method-assign]
        rig.begin()
        keys = rig.keys(1)
        rig.put_some(1)
        async with rig.hbm.brought(keys[3:]):
            assert rig.opened(keys[3:], Tier.DRAM) == [Miss.DAMAGED]
        await until(lambda: rig.hbm.broken != "")
        assert rig.hbm.broken == "CUDA error: an illegal memory access was encountered"
        assert [slot.tier for slot in rig.put_some(2)] == [Tier.DRAM] * 4
        async with rig.hbm.brought(keys[:3]):
            pass
        assert rig.hbm.left == 0 and rig.count("damaged_blocks") == 4

    lent(story, serve=False)
    lost = [one.message for one in caplog.records if "this node lends is lost" in one.message]
    assert len(lost) == 1


def test_the_node_itself_moves_nothing_to_or_from_there() -> None:
    """Its bytes are the GPU's: in the arena are heads alone."""

    async def story(rig: Lender) -> None:
        moves = Moves(rig.store, LAYOUTS.__getitem__)
        slots, keys = rig.put_some(1, 2), rig.keys(1, 2)
        opened = [one for one in rig.opened(keys, Tier.HBM) if isinstance(one, Opened)]
        whole = SMALL.layout.whole
        handles = [one.handle for one in opened]
        assert moves.reading(rig.writing, handles, whole) == [Status.REFUSED] * 2
        chain = prompt(SMALL, 2 * TOKENS, start=2_000)
        windows = rig.reserve(rig.writing, SMALL, chain, reach=Tier.HBM)
        handles = [one.handle for one in windows]
        assert moves.writing(rig.writing, handles, whole) == [Status.REFUSED] * 2
        assert list(leading(slots)) == [], "and none of it is sent ahead"
        rig.end(rig.writing)

    lent(story, serve=False)
