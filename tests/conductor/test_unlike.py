"""Engines of one crew with room for unlike many tokens: each is sent what it can hold."""

from __future__ import annotations

import pytest

from kvstore.conductor.decision import Decision
from kvstore.conductor.engines import Engine
from kvstore.conductor.explained import explain
from kvstore.conductor.facts import Role
from kvstore.conductor.room import Parked
from kvstore.core.cost import DecodeCost
from kvstore.errors import Invalid, Overloaded, TooLate, Unavailable
from kvstore.limits import CREW_GATHERS_SECONDS
from tests.conductor.crews import WHOSE, Rig, ask, chain

SLOW = DecodeCost(0.02, 1e-4, 1e-8)  # seconds
HTTP = "http://127.0.0.1:8000"


def busy(rig: Rig, engine: Engine) -> None:
    """It has more to do than it would choose."""
    engine.batch, engine.context_tokens = 20, 20_000
    rig.scheduler.crew(WHOSE)[0].load(engine)


def placed(rig: Rig, request: str, **fields: int) -> str:
    found = rig.scheduler.place(WHOSE, ask(request, **fields), rig.now)
    assert isinstance(found, Decision) and found.decode is not None
    return found.decode.facts.engine_id


def test_a_prompt_is_prefilled_where_there_is_place_for_it_whoever_would_be_sooner() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=2_000, decode=None)
    rig.engine("large", room_tokens=9_000, decode=None)
    rig.engine("decodes", prefill=None)
    for number in range(4):  # all of them wait, one behind the other
        assert rig.sent_to(f"long {number}", chain(number), tokens=2_001) == "large"
    assert rig.sent_to("short", chain(9), tokens=2_000) == "small"
    told = rig.scheduler.consider(WHOSE, ask("r", chain(8), tokens=2_001), rig.now)
    assert [one.facts.engine_id for one in told.considered] == ["large"]
    rig.check()


def test_a_prompt_may_be_prefilled_where_its_answer_has_no_place_if_another_decodes_it() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=2_000)
    rig.engine("large", prefill=None)
    plan = rig.schedule("r", tokens=2_000, max_new_tokens=500)
    assert plan.prefill is not None and plan.prefill.facts.engine_id == "small"
    assert plan.decode is not None and plan.decode.facts.engine_id == "large"
    assert placed(rig, "r", tokens=2_000, max_new_tokens=500) == "large"


def test_a_server_that_decodes_what_it_prefills_is_sent_what_has_place_with_its_answer() -> None:
    rig = Rig()
    for name, room in (("small", 2_000), ("large", 9_000)):
        rig.engine(name, room_tokens=room, address=HTTP)
    for number in range(4):
        sent = rig.sent_to(f"long {number}", chain(number), tokens=1_500, max_new_tokens=501)
        assert sent == "large"
    assert rig.sent_to("short", chain(9), tokens=1_500, max_new_tokens=500) == "small"


def test_an_answer_is_decoded_where_there_is_place_for_the_longest_it_may_be() -> None:
    rig = Rig()
    rig.engine("small", prefill=None, room_tokens=2_000)
    large = rig.engine("large", prefill=None, room_tokens=90_000, decode=SLOW)
    rig.engine("prefills", decode=None)
    assert placed(rig, "short", tokens=1_000, max_new_tokens=1_000) == "small"
    assert placed(rig, "long", tokens=1_000, max_new_tokens=1_001) == "large"
    plan = rig.schedule("longer", tokens=1_000, max_new_tokens=1_001)
    assert plan.decode is large


def test_who_waits_for_a_large_engine_s_room_is_not_given_that_of_a_small_one() -> None:
    rig = Rig()
    small = rig.engine("small", prefill=None, room_tokens=2_000)
    large = rig.engine("large", prefill=None, room_tokens=20_000)
    rig.engine("prefills", decode=None)
    busy(rig, large)
    served = list[str]()

    def tell(decision: Decision) -> None:
        assert decision.decode is not None
        served.append(decision.decode.facts.engine_id)

    said = ask("r", tokens=1_000, max_new_tokens=1_001)
    assert isinstance(rig.scheduler.place(WHOSE, said, rig.now, tell), Parked)
    rig.scheduler.serve(WHOSE, small, rig.now)
    assert not served
    large.batch, large.context_tokens = 1, 500
    rig.scheduler.crew(WHOSE)[0].load(large)
    rig.scheduler.serve(WHOSE, large, rig.now)
    assert served == ["large"]
    rig.check()


def test_what_nobody_can_prefill_is_wrong_and_may_be_asked_again_where_one_left() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=2_000, decode=None)
    large = rig.engine("large", room_tokens=3_000, decode=None)
    rig.engine("decodes", prefill=None)
    rig.now += CREW_GATHERS_SECONDS
    with pytest.raises(Invalid, match=r"of 3001 tokens: .* that prefill the largest has .* 3000 "):
        rig.schedule("r", tokens=3_001)
    told = explain(rig.scheduler, rig.scheduler.consider(WHOSE, ask(tokens=3_001), rig.now), False)
    assert "that prefill the largest has room for 3000" in told.sentence
    assert rig.sent_to("r", tokens=3_000) == "large"
    rig.scheduler.leave(WHOSE, large, rig.now)
    with pytest.raises(Overloaded, match=r"no engine that prefills now .* has it for 3000"):
        rig.schedule("r", tokens=3_000)


def test_what_only_one_that_left_lately_could_decode_waits_for_it_as_long_as_it_may() -> None:
    rig = Rig()
    small = rig.engine("small", prefill=None, room_tokens=2_000)
    large = rig.engine("large", prefill=None, room_tokens=9_000)
    rig.engine("prefills", decode=None)
    long = {"tokens": 1_500, "max_new_tokens": 1_500}
    rig.schedule("r", **long)
    rig.scheduler.leave(WHOSE, large, rig.now)
    served = list[Decision]()
    waits = rig.scheduler.place(WHOSE, ask("r", **long), rig.now, served.append)
    assert isinstance(waits, Parked)
    rig.scheduler.serve(WHOSE, small, rig.now)
    assert not served
    back = rig.engine("large", prefill=None, room_tokens=9_000)
    rig.scheduler.serve(WHOSE, back, rig.now)
    assert [one.decode for one in served] == [back]
    rig.scheduler.leave(WHOSE, back, rig.now)
    with pytest.raises(TooLate, match="left lately, has it for 9000"):
        rig.scheduler.place(WHOSE, ask("r", waited=900.0, **long), rig.now, served.append)
    rig.check()


def test_what_only_engines_can_hold_that_did_not_report_yet_is_not_wrong() -> None:
    """A conductor that begins is told of them one by one."""
    rig = Rig()
    small = rig.engine("small", room_tokens=2_000)
    with pytest.raises(Unavailable, match=r"have reported by now .* has room for 2000") as refused:
        rig.schedule("r", tokens=3_000)
    assert refused.value.retry_after_ms > 0, "its own word: it has not failed"
    rig.now += CREW_GATHERS_SECONDS
    with pytest.raises(Invalid, match="the largest has room for 2000"):
        rig.schedule("r", tokens=3_000)
    rig.scheduler.leave(WHOSE, small, rig.now)
    rig.engine("small", room_tokens=2_000)
    with pytest.raises(Unavailable):  # nobody was there: the others may have been lost with it
        rig.schedule("r", tokens=3_000)
    rig.engine("large", room_tokens=3_000)
    assert rig.sent_to("r", tokens=3_000) == "large"


def test_what_only_engines_can_prefill_that_did_not_report_yet_is_not_wrong() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=2_000, decode=None)
    rig.engine("decodes", prefill=None)
    with pytest.raises(Unavailable, match=r"that prefill and have reported by now"):
        rig.schedule("r", tokens=3_000)
    with pytest.raises(Overloaded, match="has room for that, but one that does not now"):
        rig.engine("switches", room_tokens=3_000, role=Role.DECODES)
        rig.schedule("r", tokens=3_000)


def test_an_answer_that_may_be_cut_is_cut_where_a_larger_engine_left() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=3_000, address=HTTP)
    large = rig.engine("large", room_tokens=4_000, address=HTTP)
    answer = {"max_new_tokens": 16, "as_many_as_fit": True}
    assert rig.sent_to("r", tokens=2_990, **answer) == "large", "which has room for all of it"
    rig.scheduler.leave(WHOSE, large, rig.now)
    with pytest.raises(Overloaded, match="left lately, has it for 4000"):
        rig.schedule("whole", tokens=2_990, max_new_tokens=16)
    assert rig.sent_to("r", tokens=2_990, **answer) == "small"
    with pytest.raises(Overloaded, match="of 3000 tokens and an answer of 1 at most"):
        rig.schedule("r", tokens=3_000, **answer)
    rig.check()


def test_an_answer_that_may_be_cut_is_cut_where_it_is_not_to_go_to_the_larger_engine() -> None:
    rig = Rig()
    rig.engine("small", room_tokens=3_000)
    rig.engine("large", room_tokens=4_000, address="h:1")
    away = {"tokens": 2_990, "not_at": frozenset({"h:1"}), "max_new_tokens": 16}
    assert rig.sent_to("r", as_many_as_fit=True, **away) == "small"
    with pytest.raises(Unavailable, match="not_at"):
        rig.schedule("r", **away)


def test_an_answer_that_may_be_cut_waits_for_room_at_an_engine_that_can_have_no_more_of_it() -> (
    None
):
    rig = Rig()
    small = rig.engine("small", prefill=None, room_tokens=3_000)
    rig.engine("prefills", decode=None)
    busy(rig, small)
    served = list[Decision]()
    said = ask("r", tokens=2_990, max_new_tokens=16, as_many_as_fit=True)
    assert isinstance(rig.scheduler.place(WHOSE, said, rig.now, served.append), Parked)
    small.batch, small.context_tokens = 0, 0
    rig.scheduler.crew(WHOSE)[0].load(small)
    rig.scheduler.serve(WHOSE, small, rig.now)
    assert [one.decode for one in served] == [small]
    rig.check()
