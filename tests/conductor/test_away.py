"""Engines whose own node is gone: they run on, load nothing and hand nothing over."""

from __future__ import annotations

import pytest

from kvstore.conductor.decision import Decision
from kvstore.conductor.explained import explain, reply_of
from kvstore.kernels.prefill_price import BLOCKS, FETCHED, FIRST_TOKEN, HAND, HANDED
from tests.conductor.crews import WHOSE, Rig, ask, chain

WORK = 0.01 + 1_040 * 1e-4  # seconds to compute a prompt, all of it


class Half(Rig):
    """One engine that prefills and one that decodes at each of two nodes, of which b is gone."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ab":
            self.engine(f"p{name}", node_id=name, decode=None)
            self.engine(f"d{name}", node_id=name, prefill=None)
        self.node("a", chain(1))

    def back(self) -> None:
        self.node("b", chain(9))

    def plan(self, request: str, seed: int = 1) -> Decision:
        self.now += 10.0  # all that was sent before has been computed
        for before in [*self.in_flight.prompts]:
            self.in_flight.drop(before, self.now)
        return self.schedule(request, chain(seed), tokens=1_040)

    def placed(self, request: str, seed: int = 1) -> str:
        self.now += 0.01
        found = self.scheduler.place(WHOSE, ask(request, chain(seed), tokens=1_040), self.now)
        assert isinstance(found, Decision) and found.decode is not None
        return found.decode.facts.engine_id


def names(decision: Decision) -> tuple[str, str]:
    assert decision.prefill is not None and decision.decode is not None
    return decision.prefill.facts.engine_id, decision.decode.facts.engine_id


def test_nothing_is_sent_to_them_while_others_are_free() -> None:
    rig = Half()
    for number in range(20):
        assert names(rig.plan(f"known {number}")) == ("pa", "da")
        assert names(rig.plan(f"new {number}", seed=100 + number)) == ("pa", "da")
    rig.check()


def test_once_it_is_back_they_are_sent_as_much_as_others() -> None:
    rig = Half()
    assert {names(rig.plan(f"{n}", seed=100 + n)) for n in range(20)} == {("pa", "da")}
    rig.back()
    assert {names(rig.plan(f"{n}", seed=200 + n))[0] for n in range(20)} == {"pa", "pb"}
    rig.named.remove("b")
    assert {names(rig.plan(f"{n}", seed=300 + n)) for n in range(20)} == {("pa", "da")}
    rig.check()


def test_one_that_prefills_is_taken_to_load_nothing_and_to_have_it_computed_again() -> None:
    rig = Half()
    crew = rig.scheduler.crew(WHOSE)[0]
    rig.scheduler.leave(WHOSE, crew.by_id["pa"], rig.now)
    decision = rig.plan("r")
    assert names(decision) == ("pb", "da") and decision.row is not None and decision.source == ""
    assert (decision.row[BLOCKS], decision.row[FETCHED], decision.row[HAND]) == (0, 0, 0)
    assert decision.row[FIRST_TOKEN] == pytest.approx(WORK)
    assert decision.row[HANDED] == pytest.approx(2 * WORK)
    assert not crew.fleet.hosts["owed"].any(), "nothing leaves it"
    reply = reply_of(rig.scheduler, decision, False)
    assert reply.split.computed_tokens == 1_040
    assert reply.ttft_ms == pytest.approx(2e3 * WORK)
    told = explain(rig.scheduler, decision, False)
    assert "computed again where it is decoded" in told.sentence
    rig.check()


def test_one_that_decodes_is_chosen_where_waiting_for_others_would_take_longer() -> None:
    rig = Half()
    crew = rig.scheduler.crew(WHOSE)[0]
    rig.plan("r")
    assert rig.placed("r") == "da"
    full = crew.by_id["da"]
    full.batch, full.context_tokens = 1, 99_900
    crew.load(full)
    decision = rig.plan("next")
    assert names(decision) == ("pa", "db") and decision.again
    assert reply_of(rig.scheduler, decision, False).split.computed_tokens == 1_040
    assert rig.placed("next") == "db"
    assert not crew.fleet.hosts["arrives"].any(), "nothing comes to it"
    rig.check()


def test_one_that_decodes_gets_little_while_those_that_load_have_room() -> None:
    """What it computes again holds up all that it decodes."""
    rig = Half()
    placed = [rig.placed(f"{number}") for number in range(60)]
    assert 3 * placed.count("db") <= placed.count("da")
    rig.back()
    placed = [rig.placed(f"other {number}", seed=9) for number in range(60)]
    assert placed.count("db") > 30, "it has fewer"
    rig.check()


def test_one_that_does_both_goes_on_alone_with_what_it_has_itself() -> None:
    rig = Rig()
    both = rig.engine("both", node_id="b")
    rig.engine("da", node_id="a", prefill=None)
    rig.node("a", chain(1))
    rig.scheduler.own(WHOSE, both, False, chain(1)[:0], chain(1)[:10])
    decision = rig.schedule("r", chain(1), tokens=1_040)
    assert names(decision) == ("both", "both") and not decision.again
    assert decision.row is not None
    assert (decision.own, decision.row[BLOCKS], decision.row[FETCHED]) == (10, 10, 0)
    assert decision.row[HANDED] == decision.row[FIRST_TOKEN]
    second = rig.schedule("second", chain(1), tokens=1_040)
    assert second.row is not None and second.row[BLOCKS] == 10, "what it computes may be lost"
    placed = rig.scheduler.place(WHOSE, ask("r", chain(1), tokens=1_040), rig.now)
    assert isinstance(placed, Decision) and placed.decode is both
    rig.check()


def test_where_no_engine_has_a_node_that_is_named_they_are_planned_as_ever() -> None:
    rig = Half()
    rig.named.clear()
    rig.node("elsewhere", chain(2))
    plans = [rig.plan(f"{number}", seed=2) for number in range(20)]
    assert {names(one)[0] for one in plans} == {"pa", "pb"}
    assert {one.source for one in plans} == {"elsewhere"} and not any(one.again for one in plans)


def test_those_of_whose_node_not_all_is_known_yet_are_planned_as_ever() -> None:
    rig = Half()
    rig.table.begin("b")
    rig.coming.append("b")
    plans = [rig.plan(f"{number}", seed=100 + number) for number in range(20)]
    assert {names(one) for one in plans} == {("pa", "da"), ("pb", "db")}
    assert not any(one.again for one in plans)
    rig.coming.clear()  # it went away before that
    assert {names(rig.plan(f"{n}", seed=300 + n)) for n in range(20)} == {("pa", "da")}
    rig.check()


def test_a_prompt_is_not_refused_for_what_is_known_of_one_of_two_nodes_so_far() -> None:
    rig = Rig(ttft=2.0)
    rig.engine("pb", node_id="b", decode=None)
    rig.engine("da", node_id="a", prefill=None)
    rig.node("a", chain(1))
    rig.coming.append("b")
    decision = rig.schedule("r", chain(5), tokens=15_000)
    assert names(decision) == ("pb", "da") and not decision.again
    rig.check()
