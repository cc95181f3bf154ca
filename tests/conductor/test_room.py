"""Who is given room to be decoded in, who waits for it, and who had better not."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.conductor.answers import TOKENS
from kvstore.conductor.decision import Decision
from kvstore.conductor.engines import Engine
from kvstore.conductor.explained import explain
from kvstore.conductor.facts import Role
from kvstore.conductor.largest import BACK_SECONDS
from kvstore.conductor.room import Parked
from kvstore.core.cost import DecodeCost
from kvstore.errors import Invalid, Overloaded, TooLate
from kvstore.limits import CREW_GATHERS_SECONDS, SENT_SECONDS
from tests.conductor.crews import WHOSE, Rig, ask, chain

SLOW = DecodeCost(0.08, 1e-7, 1e-9)  # seconds


class Line:
    """Requests that wait for room, and whom they are told of."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.served = rig, list[tuple[str, str]]()

    def wait(self, request: str, tokens: int, waited: float = 0.0) -> Parked:
        def tell(decision: Decision) -> None:
            assert decision.refusal is None and decision.decode is not None and decision.step > 0
            self.served.append((request, decision.decode.facts.engine_id))

        said = ask(request, tokens=tokens, waited=waited)
        parked = self.rig.scheduler.place(WHOSE, said, self.rig.now, tell)
        assert isinstance(parked, Parked)
        return parked


def full(rig: Rig, name: str = "a", **fields: Any) -> Engine:
    """An engine that has room for nobody."""
    engine = rig.engine(name, room_tokens=3_000, **fields)
    load(rig, engine, 3_000)
    return engine


def load(rig: Rig, engine: Engine, context: int) -> None:
    engine.batch, engine.context_tokens = int(context > 0), context
    rig.scheduler.crew(WHOSE)[0].load(engine)


def test_room_that_becomes_free_is_given_to_those_that_wait_the_smallest_first() -> None:
    rig = Rig()
    engine, line = full(rig), Line(rig)
    for request, tokens in (("long", 1_400), ("short", 600), ("longest", 2_400)):
        line.wait(request, tokens)
    rig.scheduler.serve(WHOSE, engine, rig.now)
    assert not line.served
    load(rig, engine, 400)
    rig.scheduler.serve(WHOSE, engine, rig.now)
    assert line.served == [("short", "a"), ("long", "a")], "and the last does not fit beside them"
    assert engine.owed_tokens == 2_000
    rig.check()


def test_who_waited_for_long_is_served_before_a_smaller_one() -> None:
    rig = Rig()
    engine, line = full(rig), Line(rig)
    line.wait("small", 600)
    line.wait("early", 1_000, waited=5.0)
    load(rig, engine, 1_000)
    rig.scheduler.serve(WHOSE, engine, rig.now)
    assert line.served == [("early", "a")]


def test_in_a_crowd_the_first_that_came_is_served_first() -> None:
    rig = Rig()
    engine, line = full(rig), Line(rig)
    line.wait("early", 1_400, waited=0.1)
    line.wait("small", 600)
    for number in range(20):
        rig.in_flight.crowd.lost(f"{number}", rig.now)
    load(rig, engine, 0)
    rig.scheduler.serve(WHOSE, engine, rig.now)
    assert line.served[0] == ("early", "a")


def test_who_steps_out_of_line_is_not_served_and_who_asks_anew_is_served_once() -> None:
    rig = Rig()
    engine, line = full(rig), Line(rig)
    gone, before = line.wait("gone", 100), line.wait("again", 100)
    line.wait("again", 100)
    rig.scheduler.step_out(WHOSE, gone)
    rig.scheduler.step_out(WHOSE, before)  # the call that it asked by first ends late
    load(rig, engine, 0)
    rig.scheduler.serve(WHOSE, engine, rig.now)
    assert line.served == [("again", "a")]
    rig.check()


def test_who_stands_in_line_no_more_wants_room_for_seconds_and_who_comes_again_goes_on() -> None:
    rig = Rig()
    full(rig)
    line = Line(rig)
    stays, goes = line.wait("stays", 1_000), line.wait("goes", 1_000)
    rig.scheduler.step_out(WHOSE, goes)
    for _ in range(4):
        rig.scheduler.step_out(WHOSE, stays)
        rig.now += 1.0
        stays = line.wait("stays", 1_000)
        rig.in_flight.expire(rig.now)
    assert "stays" in rig.in_flight.room
    assert "goes" not in rig.in_flight.room, "its caller hung up"
    rig.check()


def test_who_finds_no_place_in_line_wants_room_for_as_long_as_it_comes_again() -> None:
    rig = Rig()
    full(rig)
    for _ in range(20):
        rig.now += 1.0
        with pytest.raises(Overloaded):
            rig.scheduler.place(WHOSE, ask("asks", tokens=1_000), rig.now)
        rig.in_flight.expire(rig.now)
        assert "asks" in rig.in_flight.room
        rig.check()
    rig.now += 4.0
    rig.in_flight.expire(rig.now)
    assert "asks" not in rig.in_flight.room, "its caller hung up"


def test_one_that_is_given_few_tokens_waits_for_no_more_room_than_who_comes_next() -> None:
    rig = Rig()
    engine, served = full(rig), list[str]()
    few = ask("few", tokens=1_000, max_new_tokens=8)
    rig.scheduler.place(WHOSE, few, rig.now, lambda decision: served.append(decision.request))
    load(rig, engine, 3_000 - 1_100)
    engine.batch = 2
    rig.scheduler.crew(WHOSE)[0].load(engine)
    rig.scheduler.serve(WHOSE, engine, rig.now)
    assert served == ["few"] and TOKENS > 100, "an answer of unknown length would not fit"


def test_an_engine_that_never_took_what_it_was_to_decode_has_room_for_those_that_wait() -> None:
    rig = Rig()
    engine, line = rig.engine("a", room_tokens=3_000), Line(rig)
    rig.scheduler.place(WHOSE, ask("lost", tokens=2_000), rig.now)
    line.wait("waits", 2_000)
    rig.now += SENT_SECONDS
    engine.heard = rig.now
    rig.scheduler.sweep(rig.now)
    assert line.served == [("waits", "a")]


def test_one_that_room_came_too_late_for_is_told_so_and_counts_as_lost() -> None:
    rig = Rig(ttft=2.0)
    rig.engine("prefills", decode=None)
    engine = rig.engine("decodes", prefill=None, room_tokens=3_000)
    decided = rig.schedule("r", tokens=1_000)
    assert decided.prefill is not None
    rig.in_flight.ended("r", decided.prefill, rig.now)
    assert "r" in rig.in_flight.room and rig.in_flight.crowd.patience == 1.0
    load(rig, engine, 3_000)
    late = ask("r", tokens=1_000, waited=2.0)
    with pytest.raises(TooLate, match="its first token is wanted within 2 s"):
        rig.scheduler.place(WHOSE, late, rig.now, lambda _: None)
    assert "r" not in rig.in_flight.room and not len(rig.in_flight.room)
    assert rig.in_flight.crowd.counted == (1.0, 1.0), "once, though its prefill had been done"
    rig.check()


def test_a_prefill_that_room_is_not_expected_in_time_for_is_given_up_and_a_done_one_waits() -> None:
    rig = Rig(ttft=2.0, forecast=0.0)
    rig.engine("prefills", decode=None)
    engine = rig.engine("decodes", prefill=None, room_tokens=3_000, decode=SLOW)
    decided = rig.schedule("r", tokens=1_000)
    load(rig, engine, 3_000)
    with pytest.raises(TooLate, match="there is to be some in"):
        rig.scheduler.place(WHOSE, ask("r", tokens=1_000), rig.now)
    assert decided.prefill is not None
    rig.schedule("s", tokens=1_000)
    rig.in_flight.ended("s", decided.prefill, rig.now)
    with pytest.raises(Overloaded) as caught:
        rig.scheduler.place(WHOSE, ask("s", tokens=1_000), rig.now)
    assert not isinstance(caught.value, TooLate)
    rig.check()


def test_a_prompt_that_would_wait_too_long_for_room_is_not_let_in() -> None:
    rig = Rig(ttft=5.0)
    rig.engine("prefills", decode=None)
    rig.engine("decodes", prefill=None, room_tokens=20_000, decode=SLOW)
    sent = 0
    with pytest.raises(Overloaded, match=r"no room for 1000 tokens more: .* and 1 s are waited"):
        for sent in range(50):
            rig.schedule(f"{sent}", chain(sent), tokens=1_000)
    assert sent == 20, "as many as it has room for: what it frees takes minutes"
    rig.in_flight.drop("7", rig.now)
    rig.schedule("another", tokens=1_000)
    rig.check()


def test_what_requests_come_to_is_learned_and_with_it_how_fast_room_becomes_free() -> None:
    rig = Rig(ttft=5.0)
    engine = rig.engine("a", room_tokens=20_000, decode=SLOW)
    crew = rig.scheduler.crew(WHOSE)[0]
    load(rig, engine, 20_000)
    before = rig.in_flight.room.seconds("r", 1_000, 0, rig.scheduler._rules, False)
    for _ in range(1_000):
        crew.answers.over(3, 30)
    assert crew.answers.tokens == pytest.approx(10.0)
    after = rig.in_flight.room.seconds("r", 1_000, 0, rig.scheduler._rules, False)
    assert after == pytest.approx(before * 10 / TOKENS)


def test_a_target_that_one_alone_reaches_stays_as_it_is() -> None:
    rig = Rig(tpot=0.1)
    rig.engine("slow", decode=DecodeCost(0.5, 1e-3, 0.0))
    rig.engine("quick", decode=DecodeCost(0.08, 1e-3, 0.0))
    rig.scheduler.sweep(rig.now)
    crew = rig.scheduler.crew(WHOSE)[0]
    assert crew.reachable(0.1, 0.9) == 0.1
    assert crew.reachable(0.085, 0.9) == pytest.approx(0.085 / 0.9), "all of it"
    assert crew.reachable(0.05, 0.9) == pytest.approx(2 * 0.081)


def test_a_target_that_nobody_reaches_alone_is_no_reason_to_refuse_all_others() -> None:
    rig = Rig(tpot=0.1)
    rig.engine("a", decode=DecodeCost(0.3, 1e-3, 0.0))
    rig.scheduler.sweep(rig.now)
    for number in range(20):
        rig.schedule(f"{number}", chain(number))
        rig.scheduler.place(WHOSE, ask(f"{number}"), rig.now)
    rig.check()


def test_what_no_engine_can_ever_hold_is_wrong_and_not_to_be_asked_for_again() -> None:
    rig = Rig(gated=0.0)
    rig.engine("small", room_tokens=3_000)
    rig.engine("large", room_tokens=4_000)
    rig.engine("prefills", room_tokens=9_000, decode=None)
    assert rig.schedule("fits", tokens=4_000).decode is not None
    rig.now += CREW_GATHERS_SECONDS
    with pytest.raises(Invalid, match=r"of 4001 tokens: .* the largest has room for 4000 tokens"):
        rig.schedule("r", tokens=4_001)
    assert "r" not in rig.in_flight.prompts
    told = explain(rig.scheduler, rig.scheduler.consider(WHOSE, ask(tokens=4_001), rig.now), False)
    assert "the largest has room for 4000" in told.sentence and not told.HasField("plan")
    rig.check()


def test_what_an_engine_could_hold_that_may_be_back_is_to_be_asked_for_again_a_while() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=3_000)
    large = rig.engine("large", room_tokens=4_000)
    rig.scheduler.leave(WHOSE, large, rig.now)
    with pytest.raises(Overloaded, match="or left lately, has it for 4000"):
        rig.schedule("r", tokens=4_000)
    rig.now += BACK_SECONDS
    with pytest.raises(Invalid, match="the largest has room for 3000"):
        rig.schedule("r", tokens=4_000)


def test_what_an_engine_could_hold_that_prefills_just_now_is_to_be_asked_for_again() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=3_000)
    rig.engine("large", room_tokens=4_000, role=Role.PREFILLS)
    with pytest.raises(Overloaded, match="one that does not now, or left lately, has it for 4000"):
        rig.schedule("r", tokens=4_000)
    rig.now += CREW_GATHERS_SECONDS
    with pytest.raises(Invalid):
        rig.schedule("r", tokens=4_001)


def test_small_engines_that_come_and_go_do_not_keep_a_larger_one_in_mind() -> None:
    rig = Rig()
    rig.engine("smallest", room_tokens=1_000)
    rig.scheduler.leave(WHOSE, rig.engine("large", room_tokens=4_000), rig.now)
    for _ in range(10):
        rig.now += BACK_SECONDS / 10
        rig.scheduler.leave(WHOSE, rig.engine("small", room_tokens=3_000), rig.now)
    with pytest.raises(Invalid, match="the largest has room for 1000"):
        rig.schedule("r", tokens=3_500)


def test_what_no_engine_can_hold_to_its_end_is_wrong_and_keeps_no_room_from_others() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=3_000)
    large = rig.engine("large", room_tokens=4_000)
    rig.now += CREW_GATHERS_SECONDS
    for number in range(30):
        with pytest.raises(Invalid, match=r"of 3000 tokens and an answer of 1001 at most: .* 4000"):
            rig.schedule(f"r{number}", tokens=3_000, max_new_tokens=1_001)
    assert rig.in_flight.held == (0, 0)
    assert rig.schedule("fits", tokens=3_000, max_new_tokens=1_000).decode is not None
    rig.scheduler.leave(WHOSE, large, rig.now)
    with pytest.raises(Overloaded, match="left lately, has it for 4000"):
        rig.schedule("r", tokens=3_000, max_new_tokens=1)
    rig.check()
