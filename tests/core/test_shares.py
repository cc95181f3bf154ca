"""Who makes room for whom: those with more than their due, and nobody else."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kvstore.core.lifecycle import Tier
from kvstore.core.shares import Share, Shares

NAMES = ["a", "b", "c", "d", "e"]


def drawn(dice: random.Random) -> Shares:
    granted = {name: Share(dice.choice([0.5, 1.0, 2.0, 3.0])) for name in NAMES[:4]}
    shares = Shares(granted)
    for name in dice.sample(NAMES, dice.randrange(6)):
        shares.take(Tier.DRAM, name, dice.randrange(1, 1_000))
    return shares


def level(shares: Shares, name: str, change: int = 0) -> float:
    weight = shares.granted[name].weight if name in shares.granted else 1.0
    return (shares.used(Tier.DRAM).get(name, 0) + change) / weight


def only_those_above_pay(seed: int) -> None:
    dice = random.Random(seed)
    shares = drawn(dice)
    taker, more = dice.choice(NAMES), dice.randrange(1, 500)
    payers = list(shares.payers(Tier.DRAM, taker, more))
    assert payers[-1] == (taker, None), "the taker pays what is left, and last"
    named = [name for name, _ in payers]
    assert len(set(named)) == len(named)
    then = level(shares, taker, more)
    for name, most in payers[:-1]:
        assert most is not None and level(shares, name) > then
        assert level(shares, name, -most) >= then, "one that pays stays at its due"
        assert level(shares, name, -most - 2) < then, (
            "and pays all above, but for a float's rounding"
        )
    for name in set(NAMES) - set(named):
        assert level(shares, name) <= then, "one above its due does not pay"
    levels = [level(shares, name) for name in named[:-1]]
    assert levels == sorted(levels, reverse=True), "the highest pays first"


@pytest.mark.parametrize("seed", range(200))
def test_only_those_above_the_level_pay_the_highest_first_down_to_it(seed: int) -> None:
    only_those_above_pay(seed)


def everybody(shares: Shares, tier: Tier, tenant: str, more: int) -> Iterator[tuple[str, None]]:
    yield from ((name, None) for name in [*shares.used(tier), tenant])


def below(shares: Shares, tier: Tier, tenant: str, more: int) -> Iterator[tuple[str, int | None]]:
    """As if what the tenant takes did not count."""
    yield from REAL(shares, tier, tenant, 0)


REAL = Shares.payers


@pytest.mark.parametrize("mutant", [everybody, below])
def test_the_seeds_find_out_when(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shares, "payers", mutant)
    with pytest.raises(AssertionError):
        for seed in range(200):
            only_those_above_pay(seed)


def test_a_weight_of_three_is_due_three_times_as_much() -> None:
    shares = Shares({"heavy": Share(weight=3.0)})
    shares.take(Tier.DRAM, "heavy", 300)
    shares.take(Tier.DRAM, "light", 100)
    assert list(shares.payers(Tier.DRAM, "light", 1)) == [("light", None)]
    assert list(shares.payers(Tier.DRAM, "heavy", 1)) == [("heavy", None)]
    shares.take(Tier.DRAM, "light", 20)
    assert list(shares.payers(Tier.DRAM, "heavy", 30)) == [("light", 10), ("heavy", None)]


def test_a_tenant_alone_pays_for_itself() -> None:
    shares = Shares()
    shares.take(Tier.DRAM, "a", 100)
    assert list(shares.payers(Tier.DRAM, "a", 1_000)) == [("a", None)]


def test_each_tier_is_counted_for_itself() -> None:
    shares = Shares({"a": Share(bytes_max=100)})
    shares.take(Tier.SSD, "a", 90)
    assert shares.used(Tier.DRAM) == {} and shares.used(Tier.SSD) == {"a": 90}
    assert shares.excess(Tier.SSD, "a", 20) == 10
    assert shares.excess(Tier.DRAM, "a", 100) == 0 and shares.excess(Tier.DRAM, "a", 101) == 1
    assert shares.excess(Tier.SSD, "b", 1 << 40) == 0, "no quota"
    shares.give(Tier.SSD, "a", 90)
    assert shares.used(Tier.SSD) == {}, "who has nothing is not counted"
    with pytest.raises(AssertionError, match="more than it had"):
        shares.give(Tier.SSD, "a", 1)
