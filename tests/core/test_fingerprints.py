"""Millions of fingerprints behave like a dict, however they came and in whatever pieces."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvstore.core import fingerprints as module
from kvstore.core.fingerprints import PAGES, SHIFT, Fingerprints, fingerprint, fingerprints

FEW = 70  # fewer than there are in the real one: batches of either kind are quick to make
TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception))


def dense(dice: random.Random) -> list[int]:
    """Fingerprints that crowd a few pages, the first and the last among them."""
    pages = [0, 1, 7, PAGES - 1]
    return [dice.choice(pages) << SHIFT | dice.randrange(400) for _ in range(300)]


def prints_of(some: list[int]) -> np.ndarray:
    return np.array(some, np.uint64)


def they_behave_like_a_dict(seed: int, steps: int = 200) -> None:
    dice = random.Random(seed)
    known, held, model = dense(dice), Fingerprints(), dict[int, int]()
    for _ in range(steps):
        action = dice.random()
        if action < 0.5:
            one, tiers = dice.choice(known), dice.randrange(4)
            held.put(one, tiers)
            model[one] = tiers
        else:
            some = dice.choices(known, k=dice.choice([0, 1, 5, 60, FEW + 50]))
            tiers = [dice.randrange(4) for _ in some]
            held.put_all(prints_of(some), np.array(tiers, np.uint8))
            model |= dict(zip(some, tiers, strict=True))
        model = {one: tiers for one, tiers in model.items() if tiers}
        held.check()
        assert dict(held.items()) == model and held.count_max >= len(model)
        asked = dice.choices(known, k=dice.choice([40, FEW + 40]))
        want = [model.get(one, 0) for one in asked]
        assert held.tiers(prints_of(asked)).tolist() == want == [held.get(one) for one in asked]
        if dice.random() < 0.2:
            pages = list(held.pages())
            paged = {
                one: int(tiers)
                for prints, where in pages
                for one, tiers in zip(prints.tolist(), where, strict=True)
            }
            assert paged == model and sum(len(prints) for prints, _ in pages) == len(model)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", FEW)


@pytest.mark.parametrize("seed", range(8))
def test_fingerprints_behave_like_a_dict(seed: int) -> None:
    they_behave_like_a_dict(seed)


def test_a_page_that_somebody_reads_does_not_change_under_them() -> None:
    held = Fingerprints()
    held.put_all(prints_of(list(range(500))), np.full(500, 1, np.uint8))
    prints, tiers = next(held.pages())
    before = prints.copy(), tiers.copy()
    held.put_all(prints_of(list(range(250, 900))), np.full(650, 2, np.uint8))
    held.put_all(prints_of(list(range(100))), np.zeros(100, np.uint8))
    assert (prints == before[0]).all() and (tiers == before[1]).all()
    assert len(dict(held.items())) == 800


def test_a_fingerprint_is_the_first_eight_bytes_of_a_key_in_little_endian() -> None:
    keys = [bytes(range(32)), b"\xff" * 32, bytes(31) + b"\1"]
    assert fingerprint(keys[0]) == 0x0706050403020100
    assert fingerprints(keys).tolist() == [fingerprint(key) for key in keys]
    assert fingerprints([]).tolist() == []


def test_a_change_costs_a_page_and_not_the_whole() -> None:
    held, dice = Fingerprints(), random.Random(1)
    known = [dice.randrange(1 << 64) for _ in range(100_000)]
    held.put_all(prints_of(known), np.full(len(known), 1, np.uint8))
    before = [id(prints) for prints, _ in held.pages()]
    for one in range(100):
        held.put(one, 2)
    after = [id(prints) for prints, _ in held.pages()]
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_a_page_whose_last_words_are_lost_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module._Page, "settle", lambda self: self.recent.clear())
    with TURNS_RED:
        they_behave_like_a_dict(0)
