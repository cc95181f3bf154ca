"""Whoever follows a node's listing has exactly what the node lists, however often it was away."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from kvstore.block import Miss
from kvstore.core.fingerprints import IN_DRAM, ON_SSD, fingerprint
from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.core.listing import Listing
from kvstore.core.slabs import Slabs
from kvstore.core.sleepers import KEY, ROW, Sleepers, first_words

OWNER = (b"a", 0)
TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception))


class Follower:
    """What a conductor makes of a node: all there is in pieces, then changes."""

    def __init__(self, listing: Listing) -> None:
        self._listing, self._coming = listing, iter(())  # type: ignore[var-annotated]
        self.sequence, self.begun, self.snapshots = -1, False, 0
        self.blocks: dict[int, int] = {}

    def hear(self, pieces: int) -> None:
        """Take a few pieces more of a snapshot, or some changes."""
        if not self._listing.keeps(self.sequence):
            self.sequence, self.blocks = self._listing.sequence, {}
            self._coming, self.begun = self._listing.pages(), True
            self.snapshots += 1
        for _ in range(pieces if self.begun else 0):
            page = next(self._coming, None)
            if page is None:
                self.begun = False
                return
            prints = page[0].tolist()
            assert not self.blocks.keys() & set(prints), "a snapshot names a block twice"
            self.blocks |= dict(zip(prints, page[1].tolist(), strict=True))
        if not self.begun:
            heard = self._listing.changes(self.sequence, pieces)
            assert heard.sequence == self.sequence + len(heard.prints)
            self.blocks |= dict(zip(heard.prints.tolist(), heard.tiers.tolist(), strict=True))
            self.blocks = {one: tiers for one, tiers in self.blocks.items() if tiers}
            self.sequence = heard.sequence

    def catch_up(self) -> dict[int, int]:
        while self.begun or self.sequence != self._listing.sequence:
            self.hear(1_000)
        return self.blocks


def name(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=KEY).digest()


class Forest:
    """An index over a fixed forest, part of it asleep, and the plain truth about it."""

    def __init__(self, dice: random.Random, count: int = 60) -> None:
        self.dice, self.count = dice, count
        self.before = {i: dice.choice([None, *range(max(0, i - 3), i)]) for i in range(count)}
        self.held = {i: ON_SSD for i in range(count) if dice.random() < 0.6}
        self.index = Index()
        self.index.listing = Listing(changes_kept=16)
        self.index.recovered(self._sleepers())

    def path(self, number: int | None) -> list[int]:
        return [] if number is None else [*self.path(self.before[number]), number]

    def listed(self) -> dict[int, int]:
        found = {i: t for i, t in self.held.items() if self.held.keys() >= set(self.path(i))}
        return {fingerprint(name(number)): tiers for number, tiers in found.items()}

    def step(self) -> None:
        dice, number = self.dice, self.dice.randrange(self.count)
        action = dice.random()
        if number not in self.held:
            self.index.add(self._slot(number, Tier.DRAM))
            self.held[number] = IN_DRAM
        elif action < 0.4:
            slot = self.index.held(name(number))
            assert slot is not None
            self.index.drop(slot.key, dice.choice([Miss.EVICTED, Miss.DAMAGED]))
            del self.held[number]
        elif action < 0.8:
            self._move(number)
        else:
            self.index.rouse(OWNER, "default", 2)

    def _move(self, number: int) -> None:
        """One of: written back, promoted, given up in one of its two tiers."""
        slot = self.index.held(name(number))
        assert slot is not None
        if slot.twin is not None and self.dice.random() < 0.5:
            twin, slot.twin = slot.twin, None
            twin.twin = None
            self.index.replace(twin)
            self.held[number] = ON_SSD
        elif slot.twin is not None:
            slot.twin.twin = slot.twin = None
            self.index.moved(slot)
            self.held[number] = IN_DRAM
        elif slot.tier is Tier.DRAM:
            twin = self._slot(number, Tier.SSD)
            slot.twin, twin.twin = twin, slot
            self.index.moved(slot)
            self.held[number] = IN_DRAM | ON_SSD
        else:
            upper = self._slot(number, Tier.DRAM)
            slot.twin, upper.twin = upper, slot
            self.index.replace(upper)
            self.held[number] = IN_DRAM | ON_SSD

    def _slot(self, number: int, tier: Tier) -> Slot:
        before = self.before[number]
        parent = b"" if before is None else name(before)
        made = Slot(0, 0, OWNER, State.SEALED, key=name(number), parent=parent, tier=tier)
        made.root, made.tenant = b"r" * 16, "default"
        return made

    def _sleepers(self) -> Sleepers:
        table = np.zeros(len(self.held), ROW)
        for row, number in enumerate(self.held):
            parent = self.before[number]
            table[row]["key"] = name(number)
            table[row]["parent"] = b"" if parent is None else name(parent)
            table[row]["place"], table[row]["generation"] = 10 * row, row + 1
        table = table[np.argsort(first_words(table["key"]), kind="stable")]
        slabs = Slabs(1_000, 100, Tier.SSD)
        places = (table["owner"].astype(np.int64), table["place"], table["generation"])
        assert slabs.restore([(OWNER, 10)], *places).all()
        return Sleepers(table, [(OWNER, 10)], ["default"], slabs)


def followers_have_what_the_index_lists(seed: int, steps: int = 250) -> None:
    dice = random.Random(seed)
    forest = Forest(dice)
    listing = forest.index.listing
    followers = [Follower(listing) for _ in range(3)]
    attentive = followers[0]
    assert attentive.catch_up() == forest.listed(), "what was recovered"
    for _ in range(steps):
        forest.step()
        forest.index.check()
        listing.check()
        assert dict(listing.items()) == forest.listed()
        assert attentive.catch_up() == forest.listed()
        for one, often in zip(followers[1:], (0.3, 0.02), strict=True):
            if dice.random() < often:
                one.hear(dice.randrange(1, 40))
    for one in followers:
        assert one.catch_up() == forest.listed()
    assert attentive.snapshots == 1 and max(one.snapshots for one in followers) > 1


@pytest.mark.parametrize("seed", range(10))
def test_followers_have_what_the_index_lists(seed: int) -> None:
    followers_have_what_the_index_lists(seed)


def test_what_changes_while_a_snapshot_is_on_its_way_comes_right() -> None:
    listing = Listing()
    listing.put_all(np.arange(0, 1 << 63, 1 << 55, dtype=np.uint64), ON_SSD)
    late = Follower(listing)
    late.hear(3)  # the first pages
    for one in list(listing.items())[::2]:
        listing.put_all(np.array(one[:1], np.uint64), 0)
    listing.put_all(np.array([1, 1 << 62 | 1], np.uint64), IN_DRAM)
    assert late.catch_up() == dict(listing.items()) and late.snapshots == 1


def test_more_at_once_than_is_kept_sends_everybody_back_to_the_start() -> None:
    listing = Listing(changes_kept=8)
    one = Follower(listing)
    one.catch_up()
    listing.put_all(np.arange(8, dtype=np.uint64), ON_SSD)
    listing.check()
    assert listing.sequence == 8 and not listing.keeps(7) and listing.keeps(8)
    assert one.catch_up() == dict.fromkeys(range(8), ON_SSD) and one.snapshots == 2
    listing.put_all(np.arange(5, dtype=np.uint64), 0)
    listing.put_all(np.arange(5, dtype=np.uint64), IN_DRAM)
    listing.check()
    assert not listing.keeps(9) and listing.keeps(10) and not listing.keeps(19)


@pytest.mark.parametrize("name", ["put", "drop_all", "put_all"])
def test_an_index_that_keeps_a_change_to_itself_turns_the_suite_red(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listing, name, lambda *given: None)
    with TURNS_RED:
        followers_have_what_the_index_lists(0)
