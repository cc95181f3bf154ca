"""A crowd: where most prompts are refused or given up, how long the next is let wait here."""

from __future__ import annotations

import pytest

from kvstore.conductor import crowd as module
from kvstore.errors import Overloaded, Unavailable
from kvstore.kernels.crowd import LATELY, LEAST
from tests.conductor.crews import WHOSE, Rig, chain


def refused(rig: Rig, count: int) -> str:
    """So many prompts that cannot be in time; what the last is told."""
    for number in range(count):
        with pytest.raises(Overloaded) as caught:
            rig.schedule(f"late {number}", chain(0, 0), tokens=100_000, ttft=3.0)
    return str(caught.value)


def test_where_most_are_refused_nobody_is_let_wait_for_long() -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.in_flight.accepted("long", engine, 5.0, chain(0, 0), rig.now)
    rig.in_flight.began("long", engine, rig.now)
    assert rig.sent_to("calm", chain(3), ttft=30.0) == "a"
    assert "instead of" not in refused(rig, 1)
    assert "instead of 3 s as most are refused" in refused(rig, 100)
    with pytest.raises(Overloaded, match=rf"{30 * LEAST:.3g} s are wanted instead of 30 s as most"):
        rig.schedule("r", chain(2), ttft=30.0)
    rig.in_flight.ended("long", engine, rig.now)
    assert rig.sent_to("r", chain(2), ttft=30.0) == "a", "that waits for nobody"
    decided = rig.scheduler.decided(WHOSE, "r")
    assert decided is not None and decided.ttft == 30.0, "and may use all of its time"


def test_a_crowd_that_is_long_over_has_nobody_refused() -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.in_flight.accepted("long", engine, 5.0, chain(0, 0), rig.now)
    rig.in_flight.began("long", engine, rig.now)
    refused(rig, 100)
    rig.scheduler.sweep(rig.now)
    with pytest.raises(Overloaded, match="instead of 30 s as most are refused"):
        rig.schedule("soon", chain(2), ttft=30.0)
    rig.now += 10 * LATELY
    engine.heard = rig.now
    rig.scheduler.sweep(rig.now)
    rig.in_flight.accepted("next", engine, 5.0, chain(0, 0), rig.now)
    rig.in_flight.began("next", engine, rig.now)
    assert rig.sent_to("late", chain(2), ttft=30.0) == "a", "though it waits for that"


def test_a_crowd_is_no_smaller_for_a_moment_s_silence() -> None:
    crowd = module.Crowd()
    for number in range(100):
        crowd.lost(f"{number}", 1.0)
    before = crowd.patience
    crowd.look(2.0)
    assert crowd.patience == before == LEAST


def test_a_request_that_was_given_up_late_and_is_refused_when_it_comes_again_is_lost_once() -> None:
    crowd = module.Crowd()
    for now in (1.0, 2.0):
        crowd.lost("r", now)
    assert crowd.counted == pytest.approx((1.0, 1.0), abs=0.1)
    crowd.served("r", 3.0)
    crowd.lost("r", 4.0)
    assert crowd.counted[0] == pytest.approx(2.0, abs=0.2), "as it was served between"


def test_who_asks_while_nobody_prefills_makes_no_crowd() -> None:
    rig = Rig()
    rig.engine("d", prefill=None)
    for number in range(40):
        with pytest.raises(Unavailable):
            rig.schedule(f"early {number}", chain(number))
    assert rig.in_flight.crowd.patience == 1.0


def test_one_that_asks_again_makes_no_crowd() -> None:
    rig = Rig()
    rig.engine("a")
    for _ in range(100):
        refused(rig, 1)
    assert rig.in_flight.crowd.patience == 1.0


def test_prompts_that_engines_give_up_make_a_crowd_too() -> None:
    rig = Rig()
    engine = rig.engine("a")
    for number in range(40):
        rig.sent_to(f"{number}", chain(number))
        rig.now += 0.01  # it waited for nobody, and has not begun
        if number % 2:
            rig.in_flight.ended(f"{number}", engine, rig.now)
        else:
            rig.in_flight.given_up(f"{number}", engine, rig.now)
        assert rig.in_flight.crowd.patience == 1.0 or number > 5
    assert LEAST < rig.in_flight.crowd.patience < 0.6


def test_callers_that_leave_while_they_are_served_in_time_make_no_crowd() -> None:
    rig = Rig()
    engine = rig.engine("a")
    for number in range(40):
        rig.sent_to(f"{number}", chain(number))
        rig.sent_to(f"{number} behind it", chain(number, 1))
        rig.in_flight.began(f"{number}", engine, rig.now)
        rig.now += 0.01
        rig.in_flight.given_up(f"{number} behind it", engine, rig.now)
        rig.in_flight.given_up(f"{number}", engine, rig.now)
    assert rig.in_flight.crowd.counted == (0.0, 0.0)


def test_what_other_conductors_sent_says_nothing_of_the_crowd_here() -> None:
    rig = Rig()
    engine = rig.engine("a")
    for number in range(40):
        rig.in_flight.accepted(f"{number}", engine, 1.0, chain(number), rig.now)
        rig.in_flight.given_up(f"{number}", engine, rig.now)
    assert rig.in_flight.crowd.patience == 1.0


def test_one_that_was_served_and_is_refused_when_it_is_asked_for_anew_was_lost_after_all() -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.sent_to("r", chain(1))
    rig.in_flight.ended("r", engine, rig.now)
    assert rig.in_flight.crowd.counted == (0.0, 1.0)
    with pytest.raises(Overloaded):
        rig.schedule("r", chain(0, 0), tokens=100_000, ttft=3.0)
    assert rig.in_flight.crowd.counted == (1.0, 1.0), "once"


def test_one_that_is_served_twice_counts_once() -> None:
    rig = Rig()
    engine = rig.engine("a")
    for _ in range(2):
        rig.sent_to("r", chain(1))
        rig.in_flight.ended("r", engine, rig.now)
    assert rig.in_flight.crowd.counted == (0.0, 1.0)


def test_of_those_that_were_served_only_the_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SERVED_KEPT", 2)
    crowd = module.Crowd()
    for request in "abc":
        crowd.served(request, 1.0)
    assert [crowd.has_served(request, 1.0) for request in "abc"] == [False, True, True]
