"""Whom a conductor names to switch, for how long, and what keeps two from switching at once."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.conductor.balancing import balance
from kvstore.conductor.engines import Engine
from kvstore.conductor.facts import Role
from kvstore.conductor.roles import NAMED_SECONDS, TOLD_SECONDS, Advice
from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.errors import Invalid, Rejected, Unavailable
from kvstore.kernels.roles import LATELY, QUIET
from kvstore.limits import SWITCHING_KEPT
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.crews import WHOSE, Rig, chain

COSTS: dict[str, Any] = {
    "room_tokens": 1_000_000,
    "prefill": PrefillCost(0.01, 1e-4, 0.0),
    "decode": DecodeCost(0.01, 1e-4, 1e-8),
}


class Elastic(Rig):
    """One that prefills and three that decode, all of which can switch."""

    def __init__(self, **rules: float) -> None:
        super().__init__(**rules)
        self.number = 0
        self.enter("p", Role.PREFILLS)
        for name in "abc":
            self.enter(name, Role.DECODES)

    def enter(self, name: str, role: Role, **fields: Any) -> Engine:
        return self.engine(name, **{**COSTS, "role": role, **fields})

    def asked(self, seconds: float = LATELY + 1, rate: int = 2, tokens: int = 8_000) -> None:
        """So many prompts a second, each of which is prefilled, or refused, and then is gone."""
        for _ in range(int(seconds)):
            for _ in range(rate):
                self.number += 1
                request = f"{self.number}"
                try:
                    self.schedule(request, chain(self.number), tokens=tokens)
                except Rejected:
                    continue
                self.in_flight.drop(request, self.now)
            self.pass_(1.0)

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        for engine in self.scheduler.crew(WHOSE)[0].by_id.values():
            engine.heard = self.now
        self.scheduler.sweep(self.now)

    @property
    def advice(self) -> Advice:
        return self.scheduler.balance(WHOSE, self.now)

    def says(self, name: str) -> tuple[int, bool]:
        request = pb.BalanceRequest(namespace=WHOSE[1], engine_id=name)
        (crew,) = balance(self.scheduler, WHOSE[0], request, self.now).crews
        return crew.role, crew.held


def test_one_engine_is_told_to_switch_and_the_others_that_they_are_not_to() -> None:
    rig = Elastic()
    rig.asked()
    named = rig.advice.engine
    assert named in "abc" and rig.advice.role is Role.PREFILLS
    for name in "pabc":
        wanted = (pb.PREFILLS, False) if name == named else (pb.AS_IT_IS, True)
        assert rig.says(name) == wanted
    assert f"{named} is to prefill: asked for is" in rig.advice.sentence
    rig.check()


def test_once_it_has_switched_nobody_is_named_for_a_while_and_then_it_counts_in_its_role() -> None:
    rig = Elastic()
    rig.asked()
    named, before = rig.advice.engine, rig.advice
    rig.scheduler.leave(WHOSE, rig.scheduler.crew(WHOSE)[0].by_id[named], rig.now)
    rig.pass_(1.5)
    assert rig.says("p") == (pb.AS_IT_IS, True), "it is about to come back"
    rig.enter(named, Role.PREFILLS)
    for _ in range(int(QUIET) - 2):
        assert rig.advice.engine == "" and rig.says("p") == (pb.AS_IT_IS, True)
        assert "did so less than 30 s ago" in rig.advice.sentence
        rig.asked(1)
    rig.asked(4)
    assert (rig.advice.prefills, rig.advice.decodes) == (2, 2)
    assert rig.advice.prefill_load == pytest.approx(before.prefill_load / 2, rel=0.1)
    rig.check()


def test_one_that_is_told_and_does_not_switch_is_not_told_any_more_before_another_is() -> None:
    rig = Elastic()
    rig.asked()
    named = rig.advice.engine
    rig.asked(int(TOLD_SECONDS))
    assert rig.says(named) == (pb.AS_IT_IS, False)
    other = next(one for one in "abc" if one != named)
    assert rig.says(other) == (pb.AS_IT_IS, True)
    rig.asked(int(NAMED_SECONDS - TOLD_SECONDS) + 1)
    assert rig.advice.role is Role.PREFILLS, "somebody is told again"


def test_what_was_refused_is_wanted_too_and_one_that_comes_again_counts_once() -> None:
    rig, let_in = Elastic(ttft=0.5), 0
    for _ in range(int(LATELY) + 10):
        for number in range(2):
            for _ in range(5):
                try:
                    rig.schedule(f"{rig.now} {number}", tokens=8_000)
                    let_in += 1  # to see whether it takes as long still
                except Rejected:
                    pass
        rig.pass_(1.0)
    assert let_in <= 1
    assert rig.advice.engine and rig.advice.prefill_load == pytest.approx(1.62, rel=0.05)


def test_what_another_conductor_was_asked_for_is_counted_once_its_engine_says_so() -> None:
    alone, beside = Elastic(), Elastic()
    alone.asked(rate=2)
    for _ in range(int(LATELY) + 1):
        beside.asked(1, rate=1)
        beside.scheduler.crew(WHOSE)[0].roles.asked_elsewhere(beside.now)
    assert beside.advice.prefill_load == pytest.approx(alone.advice.prefill_load, rel=0.1)


def test_what_an_engine_was_learned_to_cost_is_remembered_while_it_does_something_else() -> None:
    rig = Elastic()
    crew = rig.scheduler.crew(WHOSE)[0]
    engine = crew.by_id["p"]
    assert engine.prefill is not None and engine.decode is None
    for _ in range(50):
        engine.prefill.observe(1_000, 0, 1.0)
    learned = engine.prefill.cost
    between = rig.enter("p", Role.DECODES)
    assert between.prefill is None and between.decode is not None
    assert crew.fleet.engines[between.number]["prefill_b"] == pytest.approx(learned.b)
    again = rig.enter("p", Role.PREFILLS)
    assert again.prefill is not None and again.prefill.cost == learned
    other = rig.enter("p", Role.PREFILLS, prefill=PrefillCost(0.5, 1e-3, 0.0))
    assert other.prefill is not None and other.prefill.cost != learned, "it is another engine"
    rig.check()


def test_one_that_comes_back_and_can_not_switch_any_more_costs_what_it_says() -> None:
    rig = Elastic()
    engine = rig.enter("x", Role.DECODES)
    for _ in range(100):
        assert engine.decode is not None
        engine.decode.observe(1, 1_000, 5.0)
    rig.scheduler.leave(WHOSE, engine, rig.now)
    engine = rig.engine("x", **COSTS)  # on another GPU, and set to do both
    rig.pass_(2.0)
    row = rig.scheduler.crew(WHOSE)[0].fleet.engines[engine.number]
    assert row["decode_a"] == pytest.approx(0.01), "what its forerunner took is nothing to it"
    rig.check()


def test_what_one_never_did_costs_what_others_were_learned_to_that_said_the_same() -> None:
    rig = Elastic()
    crew = rig.scheduler.crew(WHOSE)[0]
    first = crew.by_id["a"]
    assert first.decode is not None
    for _ in range(50):
        first.decode.observe(10, 10_000, 0.2)
    learned = first.decode.cost
    rig.pass_(1.0)
    row = crew.fleet.engines[crew.by_id["p"].number]
    assert row["decode_a"] == pytest.approx(learned.a), "before it switches"
    engine = rig.enter("p", Role.DECODES)
    assert engine.decode is not None and engine.decode.cost.a == pytest.approx(learned.a)
    other = rig.enter("other", Role.PREFILLS, decode=DecodeCost(0.5, 0.0, 0.0))
    rig.pass_(1.0)
    assert crew.fleet.engines[other.number]["decode_a"] == 0.5, "it said something else"
    rig.check()


def test_one_that_does_what_it_is_told_is_sent_only_that() -> None:
    rig = Elastic()
    assert rig.sent_to() == "p"
    rig.enter("p", Role.DECODES)
    rig.enter("a", Role.PREFILLS)
    assert rig.sent_to() == "a"
    rig.enter("a", Role.BOTH)
    assert rig.sent_to() == "a"
    rig.check()


def test_of_engines_that_are_gone_only_some_are_remembered() -> None:
    rig = Elastic()
    for number in range(2 * SWITCHING_KEPT):
        rig.scheduler.leave(WHOSE, rig.enter(f"{number}", Role.BOTH), rig.now)
    assert len(rig.scheduler.crew(WHOSE)[0].roles._known) <= SWITCHING_KEPT + 5


def test_engines_that_cannot_switch_are_recommended_what_they_have() -> None:
    rig = Rig()
    rig.engine("p", decode=None)
    rig.engine("d", prefill=None)
    (crew,) = balance(rig.scheduler, WHOSE[0], pb.BalanceRequest(), rig.now).crews
    assert (crew.namespace, crew.group) == WHOSE[1:]
    assert crew.now == crew.best == pb.BalanceReply.Split(prefill=1, decode=1)
    assert "no engine here says that it can" in crew.sentence and not crew.engine_id


def test_what_is_asked_wrongly_is_refused_by_name_and_other_tenants_engines_are_not_told() -> None:
    rig = Elastic()
    for fields, why in (
        ({"namespace": b"short"}, "namespace is 5 bytes"),
        ({"group": 64}, "group 64"),
        ({"engine_id": "p"}, "engine_id: say of which namespace"),
    ):
        with pytest.raises(Invalid, match=why):
            balance(rig.scheduler, WHOSE[0], pb.BalanceRequest(**fields), rig.now)
    assert not balance(rig.scheduler, "others", pb.BalanceRequest(), rig.now).crews
    with pytest.raises(Unavailable):
        request = pb.BalanceRequest(namespace=WHOSE[1])
        balance(rig.scheduler, "others", request, rig.now)


def test_an_engine_that_is_there_is_remembered_however_many_came_and_went() -> None:
    rig = Elastic()
    rig.enter("stays", Role.BOTH)
    for number in range(2 * SWITCHING_KEPT):
        rig.scheduler.leave(WHOSE, rig.enter(f"{number}", Role.BOTH), rig.now)
    known = rig.scheduler.crew(WHOSE)[0].roles._known
    assert "stays" in known and len(known) <= SWITCHING_KEPT + 5
