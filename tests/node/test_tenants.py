"""A tenant that floods the pool makes its own room: one that keeps to its due loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.shares import Share, Shares
from kvstore.errors import Overloaded, QuotaExceeded
from kvstore.layout import Fragment
from kvstore.node.namespaces import Place
from kvstore.node.sessions import Session
from tests.node.rig import LARGE, SECRETS, SLAB, SMALL, TOKENS, Rig, prompt, triples

SLOT = SMALL.layout.slot_bytes  # four of these, or two large ones, in a slab


def flood(rig: Rig, session: Session, place: Place, blocks: int, start: int = 100_000) -> None:
    """Prompts of one block each."""
    for number in range(blocks):
        rig.put(session, place, prompt(place, 4, start=start + 100 * number))


def used(rig: Rig, tenant: str) -> int:
    return rig.blocks.shares.used(Tier.DRAM).get(tenant, 0)


def a_flood_leaves_anothers_due(place: Place) -> None:
    """`default` holds its due of SMALL, half of the pool, and never uses it; `other` floods."""
    rig = Rig(slabs=4)
    quiet, loud = rig.session(), rig.session("other")
    kept = prompt(SMALL, 32)  # 8 blocks: two slabs
    rig.put(quiet, SMALL, kept)
    flood(rig, loud, place, 60)
    assert rig.hits(SMALL, kept) == 8
    assert used(rig, "default") == 8 * SLOT


@pytest.mark.parametrize("place", [SMALL, LARGE], ids=["same", "different"])
def test_a_flood_leaves_anothers_due_untouched_in_the_namespace(place: Place) -> None:
    a_flood_leaves_anothers_due(place)


def everybody(
    shares: Shares, tier: Tier, tenant: str, more: int
) -> Iterator[tuple[str, int | None]]:
    yield from ((name, 1 << 40) for name in shares.used(tier) if name != tenant)
    yield tenant, None


@pytest.mark.parametrize("place", [SMALL, LARGE], ids=["same", "different"])
def test_if_everybody_paid_it_would_turn_red(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shares, "payers", everybody)
    with pytest.raises(AssertionError):
        a_flood_leaves_anothers_due(place)


def test_who_has_nothing_gets_a_slab_even_of_the_only_one() -> None:
    rig = Rig(slabs=1)
    flood(rig, rig.session(), SMALL, 4)
    flood(rig, rig.session("other"), LARGE, 1)
    assert used(rig, "other") == LARGE.layout.slot_bytes and used(rig, "default") == 0


def test_a_tenant_alone_takes_the_whole_pool() -> None:
    rig = Rig(slabs=4)
    flood(rig, rig.session("other"), SMALL, 40)
    assert used(rig, "other") == 4 * SLAB


@pytest.mark.parametrize("place", [SMALL, LARGE], ids=["same", "different"])
def test_who_comes_to_a_full_pool_gets_its_due_and_no_more(place: Place) -> None:
    rig = Rig(slabs=8)
    first, late = rig.session(), rig.session("other")
    flood(rig, first, SMALL, 40)
    assert used(rig, "default") == 8 * SLAB
    flood(rig, late, place, 60)
    assert used(rig, "default") == 4 * SLAB
    per_slab = rig.blocks.slabs.slots_in_slab(place.layout.slot_bytes)
    assert used(rig, "other") >= 3 * per_slab * place.layout.slot_bytes


@pytest.mark.parametrize("place", [SMALL, LARGE], ids=["same", "different"])
def test_room_is_divided_by_weight(place: Place) -> None:
    rig = Rig(slabs=8)
    rig.blocks.shares.granted = {"other": Share(weight=3.0)}
    light, heavy = rig.session(), rig.session("other")
    for turn in range(30):
        flood(rig, light, SMALL, 2, start=200_000 + 1_000 * turn)
        flood(rig, heavy, place, 2, start=300_000 + 1_000 * turn)
    assert abs(used(rig, "default") - 2 * SLAB) <= (0 if place is SMALL else SLAB)


def test_many_blocks_at_once_bring_nobody_below_them_by_more_than_a_slab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SECRETS, "third", b"t" * 32)
    rig = Rig(slabs=12)
    for name, blocks in (("default", 22), ("other", 26)):
        flood(rig, rig.session(name), SMALL, blocks, start=1_000 * blocks)
    rig.put(rig.session("third"), LARGE, prompt(LARGE, 4 * 7))  # 84 KiB: four slabs
    least = used(rig, "third") - SLAB
    assert used(rig, "default") >= least and used(rig, "other") >= least


def test_at_its_quota_a_tenant_evicts_its_own_though_there_is_room() -> None:
    rig = Rig(slabs=4)
    rig.blocks.shares.granted = {"other": Share(bytes_max=3 * SLOT)}
    mine = rig.session()
    kept = prompt(SMALL, 16)
    rig.put(mine, SMALL, kept)
    flood(rig, rig.session("other"), SMALL, 9)
    assert used(rig, "other") == 3 * SLOT and rig.blocks.slabs.empty_slabs == 2
    assert rig.hits(SMALL, kept) == 4
    assert rig.counters.totals()["evicted_blocks"] == 6


def test_for_its_quota_a_tenant_loses_what_it_uses_least_whichever_model_that_is_of() -> None:
    rig = Rig(slabs=16)
    rig.blocks.shares.granted = {"default": Share(bytes_max=4 * SLAB)}
    mine, used_often = rig.session(), prompt(SMALL, 32)
    rig.put(mine, SMALL, used_often)
    for number in range(30):
        assert rig.hits(SMALL, used_often) == 8, "before the other's oldest went all of these did"
        rig.put(mine, LARGE, prompt(LARGE, 4, start=100_000 + 100 * number))
    assert used(rig, "default") > 3 * SLAB


def test_for_its_quota_what_a_tenant_has_nothing_of_any_more_is_not_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(slabs=4)
    mine, before, now = rig.session(), prompt(LARGE, TOKENS), prompt(SMALL, TOKENS)
    rig.put(mine, LARGE, before)
    rig.store.remove(rig.store.keys("default", LARGE, before.hashes))
    rig.put(mine, SMALL, now)
    rig.blocks.shares.granted = {"default": Share(bytes_max=SLOT)}
    asked, coldest = list[Any](), rig.blocks.index.coldest

    def asks(*which: Any) -> Iterator[Slot]:
        asked.append(which[0])
        return coldest(*which)

    monkeypatch.setattr(rig.blocks.index, "coldest", asks)
    assert rig.blocks.would_lose(SMALL.owner, "default", SMALL.layout) is not None
    assert asked == [SMALL.owner]


def test_at_its_quota_the_next_block_costs_what_would_go_for_it_though_there_is_room() -> None:
    rig = Rig(slabs=4)
    rig.blocks.shares.granted = {"default": Share(bytes_max=2 * SLOT)}
    mine, where = rig.session(), (SMALL.owner, "default", SMALL.layout)
    flood(rig, mine, SMALL, 1)
    assert rig.blocks.would_lose(*where) is None
    flood(rig, mine, SMALL, 1, start=200_000)
    assert rig.blocks.would_lose(*where) == 0.0


def test_a_quota_is_exceeded_when_all_that_the_tenant_has_is_pinned() -> None:
    rig = Rig(slabs=4)
    rig.blocks.shares.granted = {"other": Share(bytes_max=2 * SLOT)}
    other, held = rig.session("other"), prompt(SMALL, 8)
    rig.put(other, SMALL, held)
    pins = [rig.pinned(other, one) for one in held.hashes]
    before = rig.all_there_is()
    with pytest.raises(QuotaExceeded, match=r"'other'.*8192 bytes more of DRAM"):
        rig.reserve(other, SMALL, prompt(SMALL, 4, start=500))
    assert rig.all_there_is() == before, "a refusal changes nothing"
    rig.store.readers.unpin(other, [one.handle for one in pins])
    flood(rig, other, SMALL, 2)
    assert used(rig, "other") == 2 * SLOT


def test_a_call_that_takes_no_place_passes_no_quota() -> None:
    """Not one that was lowered since, either."""
    rig = Rig(slabs=4)
    mine, held = rig.session(), prompt(SMALL, 16)
    rig.put(mine, SMALL, held)
    assert [rig.pinned(mine, one) for one in held.hashes]
    rig.blocks.shares.granted = {"default": Share(bytes_max=2 * SLOT)}
    whole = SMALL.layout.whole
    assert rig.store.reserve(mine, SMALL, triples(held), whole) == [None] * 4


def test_what_goes_for_the_quota_is_not_asked_to_go_with_its_slab_again() -> None:
    rig = Rig(slabs=1)
    rig.blocks.shares.granted = {"other": Share(bytes_max=SLAB)}
    other = rig.session("other")
    flood(rig, other, SMALL, 4)
    flood(rig, other, LARGE, 1)
    assert used(rig, "other") == LARGE.layout.slot_bytes


def test_what_goes_for_the_quota_keeps_nothing_else_of_its_prompt_from_going() -> None:
    """A prompt of six blocks at a quota of seven; two others are pinned, and the pool is full."""
    rig = Rig(slabs=2)
    rig.blocks.shares.granted = {"other": Share(bytes_max=7 * SLOT)}
    quiet, other = rig.session(), rig.session("other")
    held = prompt(SMALL, 8)
    rig.put(quiet, SMALL, held)
    assert [rig.pinned(quiet, one) for one in held.hashes]
    long = prompt(SMALL, 24, start=500)
    for first in (0, 3):  # no tenant writes all that is free at once
        rig.put(other, SMALL, long, first, first + 3)
    rig.put(other, SMALL, prompt(SMALL, 12, start=900))
    assert used(rig, "other") == 6 * SLOT
    assert rig.hits(SMALL, long, "other") == 3


@pytest.mark.parametrize("how", ["pins", "windows", "parts"])
def test_who_holds_what_it_can_leaves_room_for_who_comes_next(how: str) -> None:
    rig, room, half = Rig(), 16, Fragment(0, 2, 0, 1)
    greedy, late, its = rig.session("other"), rig.session(), prompt(SMALL, 3 * TOKENS, start=9_000)
    assert rig.hits(SMALL, its) == 0, "there is another tenant"
    for number in range(room):
        one = prompt(SMALL, TOKENS, start=100 * number)
        with suppress(Overloaded):
            if how == "pins":
                rig.put(greedy, SMALL, one)
                rig.pinned(greedy, one.hashes[0])
            elif how == "windows":
                rig.reserve(greedy, SMALL, one)
            else:  # its partners never come
                [part] = rig.store.reserve(greedy, SMALL, triples(one), half, "tp2")
                assert part is not None
                rig.write(part.slot, SMALL, half)
                assert rig.store.seal(greedy, [part.handle]) == ["waiting"]
    held = rig.store.held.of("other") // SLOT
    assert held == room * 3 // 4, "most of it"
    with pytest.raises(Overloaded, match=r"other holds .* no tenant takes all"):
        rig.reserve(greedy, SMALL, prompt(SMALL, 4 * TOKENS, start=5_000))
    rig.put(late, SMALL, its)
    assert rig.hits(SMALL, its) == 3
    rig.end(greedy)
    rig.store.check()
    assert rig.store.held.of("other") == 0
