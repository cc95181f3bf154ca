"""Nobody is kept from work: by a crowd that is over, by what nobody has room for, or by what was
measured long ago."""

from __future__ import annotations

import pytest

from kvstore.conductor.kin import SHOWN_SECONDS
from kvstore.errors import Invalid, Overloaded
from kvstore.kernels.crowd import LEAST
from tests.conductor.crews import WHOSE, Rig, chain

LONG = 45_000  # tokens: 4.5 s of work, more than the least of a target of 30 s


def crowd(rig: Rig) -> None:
    for number in range(100):
        rig.in_flight.crowd.lost(f"{number}", rig.now)
    assert rig.in_flight.crowd.patience == LEAST


def test_in_a_crowd_too_an_idle_engine_is_sent_what_takes_long_by_itself() -> None:
    rig = Rig()
    engine = rig.engine("a", room_tokens=1_000_000)
    crowd(rig)
    assert rig.sent_to("first", chain(1), tokens=LONG) == "a"
    with pytest.raises(Overloaded, match="instead of 30 s as most are refused"):
        rig.schedule("behind it", chain(2), tokens=LONG)
    rig.in_flight.ended("first", engine, rig.now)
    assert rig.sent_to("behind it", chain(2), tokens=LONG) == "a"
    rig.in_flight.ended("behind it", engine, rig.now)
    with pytest.raises(Overloaded):
        rig.schedule("too long", chain(3), tokens=10 * LONG)
    with pytest.raises(Overloaded):
        rig.schedule("waited", chain(4), tokens=LONG, waited=26.0)
    rig.check()


def test_a_fleet_that_most_of_what_comes_is_long_for_gets_out_of_a_crowd() -> None:
    rig = Rig()
    engine = rig.engine("a", room_tokens=1_000_000)
    crowd(rig)
    for number in range(60):
        rig.now += 6.0
        engine.heard = rig.now
        assert rig.sent_to(f"later {number}", chain(number), tokens=LONG) == "a"
        rig.in_flight.ended(f"later {number}", engine, rig.now)
    assert rig.in_flight.crowd.patience == 1.0


def test_prompts_that_no_engine_there_has_room_for_make_no_crowd() -> None:
    rig = Rig()
    large = rig.engine("large", room_tokens=1_000_000)
    rig.engine("small", room_tokens=50_000)
    rig.scheduler.leave(WHOSE, large, rig.now)
    for number in range(40):
        with pytest.raises(Overloaded, match="left lately"):
            rig.schedule(f"{number}", chain(number), tokens=200_000)
    assert rig.in_flight.crowd.patience == 1.0


def test_engines_that_were_slow_for_a_while_are_tried_again_one_prompt_a_minute() -> None:
    rig = Rig()
    engines = [rig.engine(name, room_tokens=1_000_000) for name in "ab"]
    crew = rig.scheduler.crew(WHOSE)[0]

    def measured(seconds: float) -> None:
        for _ in range(150):
            rig.now += 1.0
            for one in engines:
                assert one.prefill is not None
                one.heard = rig.now
                one.prefill.observe(LONG, 0, seconds)
                crew.prefilled(one, rig.now)

    def let_in(seconds: float) -> int:
        """Of those that come within so long, one each second behind one that nobody has place
        for."""
        count = 0
        for number in range(round(seconds)):
            rig.now += 1.0
            for one in engines:
                one.heard = rig.now
            with pytest.raises(Invalid):
                rig.schedule(f"huge {rig.now}", chain(number), tokens=2_000_000)
            try:
                decided = rig.schedule(f"{rig.now}", chain(number), tokens=LONG)
            except Overloaded:
                continue
            assert decided.prefill is not None
            rig.in_flight.ended(f"{rig.now}", decided.prefill, rig.now)
            count += 1
        return count

    measured(40.0)
    assert let_in(SHOWN_SECONDS - 1.0) == 0
    assert let_in(10 * SHOWN_SECONDS) in (9, 10)
    measured(4.5)
    assert let_in(10.0) == 10
