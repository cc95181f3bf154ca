"""No tenant keeps another out: places, the line, and rates, decided without time or chance."""

from __future__ import annotations

import random

import pytest

from kvstore.core.turns import CONTENDED_SECONDS, Line, Places, Rates


def taken(places: Places, who: str) -> int:
    """How many more places a tenant gets."""
    count = 0
    while places.try_take(who):
        count += 1
    places.check()
    return count


def test_a_tenant_alone_gets_three_quarters_and_the_next_one_still_some() -> None:
    places = Places(32)
    assert taken(places, "a") == 24
    assert taken(places, "b") == 6
    assert taken(places, "c") == 2
    assert places.free == 0, "a fourth waits until somebody gives one back"
    places.give_back("a")
    assert not places.try_take("a") and places.try_take("d")
    places.check()


def test_two_who_take_turns_get_as_much_as_each_other() -> None:
    places, got = Places(32), {"a": 0, "b": 0}
    for _ in range(32):
        for who in got:
            got[who] += places.try_take(who)
    assert got == {"a": 14, "b": 14} and places.free == 4


@pytest.mark.parametrize("count", [0, 1, 2, 5, 32])
def test_many_together_are_taken_where_each_of_them_could_be_alone(count: int) -> None:
    for held in range(25):
        alone, together = Places(32), Places(32)
        assert held == sum(alone.try_take("a") for _ in range(held))
        assert together.try_take("a", held)
        possible = sum(alone.try_take("a") for _ in range(count)) == count
        assert together.try_take("a", count) == possible
        together.check()
        together.give_back("a", together.held("a"))
        assert together.free == 32


def test_a_place_that_nobody_holds_cannot_be_given_back() -> None:
    places = Places(4)
    places.try_take("a")
    with pytest.raises(AssertionError):
        places.give_back("b")


def test_whoever_waits_is_let_in_a_tenant_at_a_time() -> None:
    places, line = Places(4), Line[str]()
    assert taken(places, "a") == 3
    for one in ("a1", "a2", "a3", "b1", "b2", "c1"):
        line.join(one[0], one)
    assert len(line) == 6 and line.has("b") and not line.has("d")
    assert list(line.let_in(places)) == [("b", "b1")], "one is free, and not for who has three"
    let_in = []
    for who in ("a", "a", "b", "a", "c", "b", "a"):
        places.give_back(who)
        let_in += [one for _, one in line.let_in(places)]
    assert let_in == ["c1", "a1", "b2", "a2", "a3"]
    assert not len(line)


def test_who_gives_up_waiting_is_let_in_no_more() -> None:
    places, line = Places(4), Line[str]()
    line.join("a", "a1")
    line.join("a", "a2")
    line.leave("a", "a1")
    line.leave("a", "a1")
    line.leave("b", "b1")
    assert list(line.let_in(places)) == [("a", "a2")] and not line.has("a")


def test_a_tenant_that_is_alone_calls_as_often_as_it_likes() -> None:
    rates = Rates(100.0, 10.0)
    assert all(rates.spend("a", 0.0) == 0.0 for _ in range(1_000))


def test_while_another_calls_too_it_is_held_to_its_rate() -> None:
    rates = Rates(100.0, 10.0)
    for _ in range(1_000):
        rates.spend("a", 0.0)
    assert rates.spend("b", 0.0) == 0.0
    assert rates.spend("a", 0.0) == pytest.approx(0.01), "when the next call is due"
    assert rates.spend("a", 0.02) == 0.0, "two are due, and one is made"
    assert rates.spend("b", 0.02) == 0.0
    assert rates.spend("a", 0.02) == 0.0
    assert rates.spend("a", 0.02) > 0.0
    # The other has stopped calling.
    assert rates.spend("a", 0.03 + CONTENDED_SECONDS) == 0.0
    assert all(rates.spend("a", 0.03 + CONTENDED_SECONDS) == 0.0 for _ in range(100))


def test_what_was_saved_up_is_no_more_than_the_burst() -> None:
    rates = Rates(100.0, 10.0)
    rates.spend("a", 0.0)
    got = 0
    for _ in range(50):
        rates.spend("b", 1_000.0)
        got += rates.spend("a", 1_000.0) == 0.0
    assert got == 10


@pytest.mark.parametrize("seed", range(20))
def test_over_any_stretch_of_time_a_flood_gets_its_rate_and_the_quiet_one_all_it_asks(
    seed: int,
) -> None:
    dice, rates, now = random.Random(seed), Rates(100.0, 10.0), 0.0
    loud = refused = 0
    for _ in range(5_000):
        now += dice.random() / 1_000
        loud += rates.spend("loud", now) == 0.0
        if dice.random() < 0.02:  # some 40 a second
            refused += rates.spend("quiet", now) > 0.0
    assert refused == 0
    assert loud <= 100.0 * now + 10.0 + 300  # what it had while it was alone at the start
    assert loud >= 100.0 * now * 0.9


def test_tenants_that_call_no_more_are_forgotten() -> None:
    rates = Rates(100.0, 10.0)
    for number in range(10_000):
        rates.spend(f"t{number}", float(number))
    assert len(rates._left) < 10


def test_what_costs_as_much_as_many_calls_goes_on_and_those_that_follow_wait_for_it() -> None:
    rates = Rates(100.0, 10.0)
    assert rates.spend("b", 0.0) == rates.spend_more("a", 0.0, 9) == 0.0
    assert rates.spend("a", 0.0) == 0.0
    assert rates.spend_more("a", 0.0, 30) == 0.0, "it is not kept out by what small ones left"
    assert rates.spend("a", 0.0) == pytest.approx(0.31)
    assert rates.spend("b", 0.25) == 0.0
    again = rates.spend_more("a", 0.25, 50)
    assert again == pytest.approx(0.06), "nor does another come on top of it"
    assert rates.spend("b", 0.31) == rates.spend("a", 0.32) == 0.0


def test_small_calls_without_end_keep_no_large_one_of_their_tenant_out() -> None:
    """Who counted a large one has what was left: it goes on with that alone."""
    rates, served = Rates(100.0, 10.0), 0
    rates.spend("b", 0.0)
    for step in range(1_000):
        now = step / 100
        rates.spend("b", now)
        if step % 5 == 0 and rates.spend("a", now) == 0.0:
            served += rates.spend_more("a", now, 2) == 0.0
        while rates.spend("a", now) == 0.0:
            pass
    assert served > 50


def test_who_owes_as_much_as_it_may_is_refused_also_what_it_may_owe_for() -> None:
    """So a flood of such calls has what it may owe beside what was saved up, and then its rate."""
    rates, got = Rates(100.0, 10.0), 0
    rates.spend("b", 0.0)
    assert rates.spend("a", 0.0) == rates.spend_more("a", 0.0, 12) == 0.0
    assert rates.spend("a", 0.0) > 0.0 and rates.spend_more("a", 0.0, 1) > 0.0, "it owes three"
    assert rates.spend("a", 0.0, owing=10.0) == rates.spend_more("a", 0.0, 4, owing=10.0) == 0.0
    assert rates.spend("a", 0.0, owing=10.0) == rates.spend("a", 0.0, owing=10.0) == 0.0
    assert rates.spend("a", 0.0, owing=10.0) == pytest.approx(0.01), "when the next one is due"
    assert rates.spend("a", 0.0) == pytest.approx(0.11), "and of those it may not owe for"
    for step in range(1_000):
        rates.spend("b", step / 100)
        got += sum(rates.spend("a", step / 100, owing=10.0) == 0.0 for _ in range(9))
    assert 990 <= got <= 999


def test_what_it_may_owe_for_is_let_in_as_a_whole_whatever_it_names() -> None:
    rates = Rates(100.0, 10.0)
    rates.spend("b", 0.0)
    rates.spend_more("a", 0.0, 19)
    assert rates.spend("a", 0.0, owing=10.0) == rates.spend_more("a", 0.0, 30, owing=10.0) == 0.0
    again = rates.spend_more("a", 0.0, 30, owing=10.0)
    assert again == pytest.approx(0.31), "and no other on top of it"


def test_what_a_tenant_took_alone_it_does_not_owe_to_the_next() -> None:
    rates = Rates(100.0, 10.0)
    assert all(rates.spend_more("a", 0.0, 500) == 0.0 for _ in range(10))
    rates.spend("b", 0.0)
    assert rates.spend("a", 0.01) == 0.0
