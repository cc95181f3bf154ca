"""What is in flight is counted in and out with the same numbers, whatever happens in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.conductor.choices import RULES
from kvstore.conductor.engines import Crew, Engine
from kvstore.conductor.in_flight import Stage
from kvstore.conductor.room import Parked
from kvstore.core.turns import Places
from kvstore.kernels import decision as loops
from kvstore.kernels import expected
from kvstore.kernels.decision import waiting
from kvstore.limits import IN_FLIGHT_SECONDS, SENT_SECONDS
from tests.conductor.crews import WHOSE, Rig, chain

IDS = [f"r{number}" for number in range(8)]
ACTIONS = (
    *("send", "accepted", "began", "ended", "given up", "owe", "decoding", "expire", "later"),
    *("leave", "come", "wait", "serve", "too late", "elsewhere"),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.sampled_from(IDS),
        st.integers(0, 2),  # engine
        st.floats(1e-4, 50.0),  # seconds of work
        st.integers(0, 3),  # chain
        st.integers(0, 40),  # blocks of it
    ),
    max_size=60,
)


def begin(rig: Rig, number: int) -> Engine:
    """Two that do both, and one that prefills."""
    alone: dict[str, None] = {} if number != 1 else {"decode": None}
    return rig.engine(f"e{number}", **alone)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_when_all_is_over_exactly_nothing_is_left(
    steps: list[tuple[str, str, int, float, int, int]],
) -> None:
    rig = Rig()
    rig.engine("stays")  # so that there is a crew
    there = {number: begin(rig, number) for number in range(3)}
    parked: dict[str, Parked] = {}
    for action, request, number, work, which, blocks in steps:
        in_flight, prints = rig.in_flight, chain(which, 40)[:blocks]
        engine = there.get(number)
        if action == "later":
            rig.now += work
        elif action == "expire":
            in_flight.expire(rig.now)
        elif action == "come":
            there[number] = begin(rig, number)
        elif engine is None:
            continue
        elif action == "leave":
            rig.scheduler.leave(WHOSE, there.pop(number), rig.now)
        elif action == "send":
            in_flight.send(request, engine, work, prints, rig.now, work, 1 + blocks)
        elif action == "accepted":
            in_flight.accepted(request, engine, work, prints, rig.now, 1 + blocks)
        elif action == "began":
            in_flight.began(request, engine, rig.now)
        elif action == "ended":
            in_flight.ended(request, engine, rig.now)
        elif action == "given up":
            in_flight.given_up(request, engine, rig.now)
        elif action == "owe":
            in_flight.owe(request, engine, 1 + blocks, rig.now)
        elif action == "decoding":
            in_flight.decoding(request, engine, rig.now)
        elif action == "wait":
            parked[request] = Parked(request, 1 + blocks, 0, 1.0, rig.now, 1.0, lambda *_: None)
            in_flight.wait(parked[request], rig.now)
        elif action == "too late":
            in_flight.room_came_too_late(request, rig.now)
        elif action == "elsewhere":
            in_flight.elsewhere(request, rig.now)
        elif action == "serve":
            in_flight.serve(engine, RULES, rig.now)
            assert not (engine.decode and len(in_flight.room)), "there is room for all"
        rig.check()
    for one in parked.values():
        rig.in_flight.room.step_out(one)
    rig.now += IN_FLIGHT_SECONDS
    rig.in_flight.expire(rig.now)
    assert rig.in_flight.held == (0, 0)
    rig.check()
    fleet = rig.scheduler.crew(WHOSE)[0].fleet
    for name in ("batch", "context"):
        assert not fleet.engines[name].any(), name
    assert not fleet.lines["ahead"].any() and not fleet.lines["waiting"].any()
    assert (fleet.engines["busy_until"] <= rig.now).all()


def test_what_an_engine_never_took_is_forgotten_soon_and_what_it_has_is_not() -> None:
    rig = Rig()
    engine = rig.engine("a")
    for request in ("lost", "taken"):
        rig.in_flight.send(request, engine, 1.0, chain(1), rig.now, 1.0)
    rig.in_flight.accepted("taken", engine, 1.0, chain(1), rig.now)
    rig.now += SENT_SECONDS
    rig.in_flight.expire(rig.now)
    assert list(rig.in_flight.prompts) == ["taken"]
    rig.now += IN_FLIGHT_SECONDS
    rig.in_flight.expire(rig.now)
    assert not rig.in_flight.prompts
    rig.check()


def test_what_this_conductor_sent_counts_once_when_its_engine_accepts_it() -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.in_flight.send("r", engine, 1.0, chain(1), rig.now, 1.0)
    rig.in_flight.accepted("r", engine, 7.0, chain(1), rig.now)
    fleet = rig.scheduler.crew(WHOSE)[0].fleet
    assert waiting(fleet, engine.number) == (1, 1.0)
    assert rig.in_flight.prompts["r"].stage is Stage.WAITING
    rig.check()


def test_a_request_that_another_engine_has_went_there() -> None:
    rig = Rig()
    first, second = rig.engine("a"), rig.engine("b")
    rig.in_flight.send("r", first, 1.0, chain(1), rig.now, 1.0)
    rig.in_flight.accepted("r", second, 2.0, chain(1), rig.now)
    fleet = rig.scheduler.crew(WHOSE)[0].fleet
    assert waiting(fleet, first.number) == (0, 0.0) and waiting(fleet, second.number) == (1, 2.0)
    rig.in_flight.ended("r", first, rig.now)
    assert "r" in rig.in_flight.prompts, "what the first says of it counts no more"
    rig.check()


def test_an_engine_is_busy_for_as_long_as_its_prefills_take() -> None:
    rig = Rig()
    engine = rig.engine("a")
    for request, work in (("one", 2.0), ("two", 3.0)):
        rig.in_flight.accepted(request, engine, work, chain(1), rig.now)
        rig.in_flight.began(request, engine, rig.now)
    row = rig.scheduler.crew(WHOSE)[0].fleet.engines[engine.number]
    assert row["busy_until"] == rig.now + 5.0 and row["running"] == 5.0
    rig.now += 1.0
    rig.in_flight.ended("one", engine, rig.now)
    assert row["busy_until"] == rig.now + 3.0 and row["running"] == 3.0
    rig.in_flight.ended("two", engine, rig.now)
    assert row["busy_until"] == rig.now and row["running"] == 0.0


def test_an_engine_that_does_not_end_its_prefill_is_sent_nothing_while_others_are_free() -> None:
    rig = Rig()
    stuck, other = rig.engine("a"), rig.engine("b")
    rig.in_flight.accepted("r", stuck, 0.1, chain(1), rig.now)
    rig.in_flight.began("r", stuck, rig.now)
    for number in range(2, 12):
        rig.now += 2.0
        assert rig.sent_to(f"r{number}", chain(number)) == "b"
        rig.in_flight.ended(f"r{number}", other, rig.now)


def test_predictions_are_compared_with_what_came() -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.in_flight.send("mine", engine, 1.0, chain(1), rig.now, 2.0)
    rig.in_flight.accepted("theirs", engine, 1.0, chain(1), rig.now)
    rig.now += 3.0
    for request in ("mine", "theirs"):
        rig.in_flight.ended(request, engine, rig.now)
    assert engine.errors.taken == 1, "what another conductor predicted is not known"
    assert engine.errors.mean.size == pytest.approx(0.5)


def test_what_prefills_take_beside_what_engines_say_of_them_is_learned() -> None:
    rig = Rig()
    engine, other = rig.engine("a", decode=None), rig.engine("b", decode=None)
    assert engine.prefill is not None
    said = engine.prefill.cost.seconds(1_000, 200)
    for number in range(100):
        request = f"r{number}"
        rig.in_flight.send(request, engine, said, chain(1), rig.now, said, 1_200, (1_000, 200))
        rig.now += 5.0
        rig.in_flight.began(request, engine, rig.now)
        rig.now += 2 * said
        rig.in_flight.ended(request, engine, rig.now)
    assert engine.bias.taken == 100 and engine.bias.factor == pytest.approx(2, rel=0.1)
    fleet = rig.scheduler.crew(WHOSE)[0].fleet
    for name in ("prefill_a", "prefill_b"):
        ratio = fleet.engines[engine.number][name] / fleet.engines[other.number][name]
        assert ratio == pytest.approx(engine.bias.factor), name
    assert fleet.engines[engine.number]["decode_a"] == fleet.engines[other.number]["decode_a"]


@pytest.mark.parametrize("why", ["it is brought", "beside another", "as another's", "it decodes"])
def test_a_prefill_that_may_have_waited_for_something_says_nothing_of_others(why: str) -> None:
    rig = Rig()
    engine = rig.engine("a", **({} if why == "it decodes" else {"decode": None}))
    computes = None if why == "it is brought" else (1_000.0, 0.0)
    if why == "as another's":
        rig.in_flight.accepted("r", engine, 1.0, chain(1), rig.now, 1_000)
    else:
        rig.in_flight.send("r", engine, 1.0, chain(1), rig.now, 1.0, 1_000, computes)
    if why == "beside another":
        rig.in_flight.send("other", engine, 1.0, chain(2), rig.now, 1.0, 1_000, computes)
        rig.in_flight.began("other", engine, rig.now)
    rig.in_flight.began("r", engine, rig.now)
    if why == "beside another":
        rig.now += 1.0
        rig.in_flight.ended("other", engine, rig.now)
    rig.now += 3.0
    rig.in_flight.ended("r", engine, rig.now)
    assert engine.bias.taken == 0
    rig.in_flight.send("next", engine, 1.0, chain(1), rig.now, 1.0, 1_000, (1_000.0, 0.0))
    rig.in_flight.began("next", engine, rig.now)
    rig.now += 3.0
    rig.in_flight.ended("next", engine, rig.now)
    assert engine.bias.taken == (why != "it decodes"), "the next runs alone, and nothing is brought"


def test_what_rounding_leaves_of_prefills_is_gone_once_none_runs() -> None:
    rig = Rig()
    engine = rig.engine("a")
    works = {"a": 0.1, "b": 0.2, "c": 0.3}
    for request, work in works.items():
        rig.in_flight.send(request, engine, work, chain(1), rig.now, 1.0)
        rig.in_flight.began(request, engine, rig.now)
    for request in works:
        rig.in_flight.ended(request, engine, rig.now)
        rig.check()


def _nothing(*_: object) -> None:
    """What a count out does where it was forgotten."""


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (loops, "leave_line"),
        (loops, "wait_in_line"),
        (expected, "settle"),
        (Places, "give_back"),
        (Crew, "load"),
    ],
)
def test_the_check_sees_what_is_not_counted_out(
    where: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.in_flight.send("r", engine, 1.0, chain(1), rig.now, 1.0)
    rig.in_flight.owe("s", engine, 5, rig.now)
    rig.check()
    monkeypatch.setattr(where, name, _nothing)
    rig.in_flight.drop("r", rig.now)
    rig.in_flight.forgive("s")
    if name == "wait_in_line":
        rig.in_flight.accepted("t", engine, 1.0, chain(1), rig.now)
    with pytest.raises(AssertionError):
        rig.check()


def test_one_that_a_decoder_has_whole_wants_no_room_any_more() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.in_flight.send("r", prefills, 1.0, chain(1), rig.now, 1.0, 1_024)
    rig.in_flight.elsewhere("r", rig.now)
    rig.scheduler.leave(WHOSE, decodes, rig.now)  # and never says what became of it
    rig.now += IN_FLIGHT_SECONDS
    rig.in_flight.expire(rig.now)
    assert "r" not in rig.in_flight.room, "room is wanted for ever by what is nowhere"
    rig.check()


def test_one_that_an_engine_is_to_decode_wants_no_room_when_its_prompt_is_told_of_anew() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.in_flight.send("r", prefills, 1.0, chain(1), rig.now, 1.0, 1_024)
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    again = rig.engine("p", decode=None)  # its stream broke
    rig.in_flight.accepted("r", again, 1.0, chain(1), rig.now, 1_024)
    assert decodes.owed_tokens == 1_024 and "r" not in rig.in_flight.room
    rig.check()


def test_one_that_nobody_is_to_decode_after_all_wants_room_while_it_is_prefilled() -> None:
    rig = Rig()
    rig.engine("p", decode=None)
    decodes, other = rig.engine("d", prefill=None), rig.engine("e", prefill=None)
    assert rig.sent_to("r") == "p"
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    assert "r" not in rig.in_flight.room
    rig.in_flight.forgive("r")  # as its caller asks anew who decodes it
    assert "r" in rig.in_flight.room
    rig.in_flight.owe("r", other, 1_024, rig.now)
    rig.scheduler.leave(WHOSE, other, rig.now)
    assert "r" in rig.in_flight.room
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    rig.in_flight.decoding("r", decodes, rig.now)
    assert "r" not in rig.in_flight.room
    rig.check()


def test_one_that_is_decoded_before_its_prefill_is_told_of_wants_no_room() -> None:
    """Another conductor sent it, and the word of who decodes it overtook that of who prefills."""
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.in_flight.decoding("r", decodes, rig.now)
    rig.in_flight.accepted("r", prefills, 1.0, chain(1), rig.now, 1_024)
    rig.in_flight.began("r", prefills, rig.now)
    assert "r" not in rig.in_flight.room and "r" in rig.in_flight.prompts
    rig.in_flight.ended("r", prefills, rig.now)
    assert "r" not in rig.in_flight.room and rig.in_flight.held == (0, 0)
    rig.schedule("r")
    assert "r" in rig.in_flight.room, "it is asked for anew"
    rig.check()


def test_one_whose_word_was_early_long_ago_wants_room_as_any_other() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.in_flight.decoding("r", decodes, rig.now)
    rig.in_flight.accepted("other", prefills, 1.0, chain(1), rig.now, 1_024)
    assert "other" in rig.in_flight.room
    rig.now += SENT_SECONDS
    rig.in_flight.accepted("r", prefills, 1.0, chain(1), rig.now, 1_024)
    assert "r" in rig.in_flight.room
    rig.check()


def test_an_engine_that_gives_up_what_another_has_by_now_takes_no_wish_for_room_away() -> None:
    rig = Rig()
    first, second = rig.engine("a"), rig.engine("b")
    rig.in_flight.send("r", first, 1.0, chain(1), rig.now, 1.0, tokens=100)
    rig.in_flight.send("r", second, 1.0, chain(1), rig.now, 1.0, tokens=100)
    rig.in_flight.given_up("r", first, rig.now)
    assert "r" in rig.in_flight.prompts and "r" in rig.in_flight.room
    rig.in_flight.given_up("r", second, rig.now)
    assert "r" not in rig.in_flight.prompts and "r" not in rig.in_flight.room
    rig.check()


def test_what_waited_to_be_decoded_is_in_flight_no_more_once_all_engines_have_left() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    assert rig.sent_to("r") == "p"
    rig.in_flight.began("r", prefills, rig.now)
    rig.in_flight.ended("r", prefills, rig.now)
    assert rig.in_flight.held == (1, 0), "nobody decodes it yet"
    for one in (prefills, decodes):
        rig.scheduler.leave(WHOSE, one, rig.now)
    rig.check()
