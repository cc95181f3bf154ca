"""A decision can be asked why, in numbers and in one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvstore.conductor.choices import RULES
from kvstore.conductor.explained import explain, reply_of, sentence_of
from kvstore.conductor.in_flight import NO_PRINTS
from kvstore.core.cost import TransferCost
from kvstore.core.fingerprints import ON_SSD
from kvstore.errors import Overloaded
from kvstore.kernels.decision import BEST
from kvstore.limits import DECISIONS_KEPT
from tests.conductor.crews import WHOSE, Rig, ask, chain


def test_a_plan_says_where_each_block_comes_from_and_by_when() -> None:
    rig = Rig()
    rig.engine("a")
    rig.node("node of a", chain(1)[:10])
    rig.node("elsewhere", chain(1)[:60])
    decision = rig.schedule(waited=2.0, tokens=1_030)
    reply = reply_of(rig.scheduler, decision, True)
    assert reply.approximate and reply.prefill.address == "127.0.0.1:7500"
    split = reply.split
    assert (split.there_blocks, split.fetched_blocks, split.read_blocks) == (10, 50, 0)
    assert split.fetched_from == "elsewhere" and split.computed_tokens == 1_030 - 60 * 16
    assert decision.row is not None
    work = 0.01 + 70 * 1e-4
    assert reply.ttft_ms == pytest.approx(reply.wait_ms + 2_000 + 1e3 * work)
    assert reply.drop_after_ms == pytest.approx(1e3 * (30 - 2 - work), abs=1)
    assert reply.decode.engine_id == "a" and reply.tpot_ms > 10


def test_one_that_is_let_in_though_it_is_late_is_dropped_by_nobody() -> None:
    """As where a fleet that was slow is to be measured again."""
    rig = Rig()
    rig.engine("a")
    late = replace(rig.schedule(waited=2.0), ttft=1.0)
    assert reply_of(rig.scheduler, late, False).drop_after_ms == 0


def test_of_several_engines_at_one_address_a_plan_says_which() -> None:
    rig = Rig()
    rig.engine("both", rank=1)
    reply = reply_of(rig.scheduler, rig.schedule(), False)
    for place in (reply.prefill, reply.decode):
        assert place.HasField("data_parallel_rank") and place.data_parallel_rank == 1
    alone = Rig()
    alone.engine("a")
    reply = reply_of(alone.scheduler, alone.schedule(), False)
    assert not reply.prefill.HasField("data_parallel_rank")


def test_who_waited_long_goes_before_who_is_a_little_shorter() -> None:
    rig = Rig()
    rig.engine("a")
    plans = [
        reply_of(
            rig.scheduler, rig.schedule(request, chain(2), tokens=tokens, waited=waited), False
        )
        for request, tokens, waited in (
            ("new", 1_024, 0.0),
            ("old", 1_500, 5.0),
            ("long", 9_000, 0),
        )
    ]
    new, old, long = (one.priority_ms for one in plans)
    assert old < new < long


def test_the_sentence_says_why_the_first_won() -> None:
    rig = Rig()
    for name in "ab":
        rig.engine(name)
    rig.node("node of a", chain(1)[:60])
    said = sentence_of(rig.schedule())
    assert said.startswith("a gives the first token in") and "reuses 60 of 64 blocks" in said
    assert "; b, the next, takes" in said
    alone = Rig()
    alone.engine("a")
    alone.node("node of a", chain(1), ON_SSD)
    said = sentence_of(alone.schedule())
    assert "64 of them read from SSD; no other engine was worth a look" in said


def test_a_refusal_is_explained_by_what_was_best() -> None:
    rig = Rig()
    for name in "ab":
        engine = rig.engine(name)
        rig.in_flight.accepted(f"of {name}", engine, 9.0, chain(0, 0), rig.now)
        rig.in_flight.began(f"of {name}", engine, rig.now)
    with pytest.raises(Overloaded) as caught:
        rig.schedule("r", ttft=2.0)
    found = rig.scheduler.decided(WHOSE, "r")
    assert found is not None
    reply = explain(rig.scheduler, found, False)
    assert not reply.HasField("plan") and reply.sentence == str(caught.value)
    assert {one.engine_id for one in reply.considered} == {"a", "b"}
    assert all(one.wait_ms == pytest.approx(9_000) for one in reply.considered)


@pytest.mark.parametrize("count", [3, 200])
def test_all_that_were_considered_come_best_first(count: int) -> None:
    rig = Rig()
    for number in range(count):
        engine = rig.engine(f"e{number}")
        rig.in_flight.accepted(f"{number}", engine, 0.05 * (1 + number), chain(0, 0), rig.now)
        rig.in_flight.began(f"{number}", engine, rig.now)
    reply = explain(rig.scheduler, rig.scheduler.consider(WHOSE, ask(), rig.now), False)
    names = [one.engine_id for one in reply.considered]
    assert names == [f"e{number}" for number in range(min(count, BEST))]
    costs = [one.cost for one in reply.considered]
    assert costs == sorted(costs) and reply.plan.prefill.engine_id == "e0"
    assert not rig.scheduler.decided(WHOSE, "r"), "what is asked only leaves no trace"
    assert len(rig.in_flight.prompts) == count


def test_only_so_many_decisions_are_remembered_and_only_for_who_asked() -> None:
    rig = Rig()
    rig.engine("a")
    for number in range(DECISIONS_KEPT + 5):
        rig.schedule(f"{number}", chain(0, 0), tokens=1)
        rig.in_flight.drop(f"{number}", rig.now)
    assert rig.scheduler.decided(WHOSE, "4") is None
    assert rig.scheduler.decided(WHOSE, "5") is not None
    assert rig.scheduler.decided(("others", *WHOSE[1:]), "5") is None


def test_one_that_is_cheaper_and_too_late_is_named_behind_the_one_that_is_in_time() -> None:
    rig = Rig()
    late, _ = rig.engine("late"), rig.engine("in time", link=TransferCost(1e-3, 1e5))
    rig.in_flight.accepted("long", late, 3.1, chain(0, 0), rig.now)
    rig.in_flight.began("long", late, rig.now)
    rig.node("node of late", chain(1, 1_560))
    rig.scheduler.crew(WHOSE)[0].look(RULES, 1e3)  # half of the engines are busy, so time is scarce
    found = rig.scheduler.consider(WHOSE, ask(prints=chain(1, 1_560), tokens=25_000, ttft=3.0), 1e3)
    reply = explain(rig.scheduler, found, False)
    first, second = reply.considered
    assert (first.engine_id, second.engine_id) == ("in time", "late")
    assert first.cost > second.cost
    assert reply.sentence.endswith("; late costs less, and does not keep the target")


def test_a_near_source_is_named_with_its_way_and_is_the_one_that_is_busy() -> None:
    rig = Rig()
    far = {"far_bytes_per_second": 5e8}
    near = {"domain": "d", "domain_bytes_per_second": 7e11}
    rig.engine("taker", rack="r1", **near, **far)
    rig.engine("near", rack="r1", prefill=None, **near, **far)
    rig.engine("apart", rack="r2", prefill=None, **far)
    rig.node("node of taker", NO_PRINTS)
    rig.node("node of near", chain(1)[:50])
    rig.node("node of apart", chain(1)[:60])
    decision = rig.schedule()
    found = explain(rig.scheduler, decision, False)
    assert ", 50 of them fetched from node of near of its NVLink domain" in found.sentence
    assert found.plan.split.fetched_from == "node of near"
    assert [one.fetched_from for one in found.considered] == ["node of near"]
    hosts = rig.scheduler.crew(WHOSE)[0].fleet.hosts
    assert (hosts["domain_leaves"] > 0).sum() == (hosts["domain_arrives"] > 0).sum() == 1
    assert not hosts["leaves"].any() and not hosts["arrives"].any()


def test_what_is_worth_its_way_from_another_rack_is_said_to_come_from_there() -> None:
    rig = Rig()
    rig.engine("taker", rack="r1")
    rig.engine("apart", rack="r2", prefill=None, far_bytes_per_second=5e9)
    rig.node("node of taker", NO_PRINTS)
    rig.node("node of apart", chain(1)[:60])
    found = explain(rig.scheduler, rig.schedule(), False)
    assert "60 of them fetched from node of apart of another rack" in found.sentence


def test_who_is_refused_is_told_of_the_soonest_of_all_engines_and_not_of_the_cheapest() -> None:
    rig = Rig()
    for number in range(20):
        engine = rig.engine(f"quiet {number}")
        rig.in_flight.accepted(f"runs {number}", engine, 5.0, chain(0, 0), rig.now)
        rig.in_flight.began(f"runs {number}", engine, rig.now)
    soon = rig.engine("soon")
    rig.in_flight.accepted("runs", soon, 4.0, chain(0, 0), rig.now)
    rig.in_flight.began("runs", soon, rig.now)
    for number in range(40):  # all of which it would overtake
        rig.in_flight.accepted(f"waits {number}", soon, 9.0, chain(0, 0), rig.now)
    with pytest.raises(Overloaded, match="soon, the soonest of 21 engines, begins in 4 s") as told:
        rig.schedule("r", chain(2), ttft=1.0)
    considered = rig.scheduler.decided(WHOSE, "r")
    assert considered is not None and soon not in considered.considered, "others cost less"
    assert told.value.retry_after_ms == pytest.approx(7_100, abs=50), "9,100 at the others"
