"""Where requests are sent, over fleets that are made up: what is there, what waits, and chance."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.conductor import crews
from kvstore.conductor.decision import RETRY_MS_MAX, Decision
from kvstore.conductor.explained import explain, sentence_of
from kvstore.core.cost import DecodeCost, PrefillCost, TransferCost
from kvstore.core.fingerprints import IN_DRAM, IN_HBM, ON_SSD
from kvstore.errors import Invalid, Overloaded, Unavailable
from kvstore.kernels.prefill_price import BLOCKS, FETCHED, FIRST_TOKEN, READ, WAIT, WORK
from kvstore.limits import CREWS_MAX, REPORT_SILENCE_SECONDS
from tests.conductor.crews import WHOSE, Rig, ask, chain


def row(decision: Decision) -> tuple[float, float, float]:
    """Blocks that are reused, and of those fetched and read."""
    assert decision.row is not None
    return decision.row[BLOCKS], decision.row[FETCHED], decision.row[READ]


def test_a_prompt_goes_where_its_blocks_are() -> None:
    rig = Rig()
    for name in "abc":
        rig.engine(name)
    rig.node("node of b", chain(1)[:40])
    decision = rig.schedule()
    assert decision.prefill is not None and decision.prefill.facts.engine_id == "b"
    assert row(decision) == (40, 0, 0) and decision.there == 40
    rig.check()


def test_what_another_node_has_is_fetched_and_its_link_is_busy_meanwhile() -> None:
    rig = Rig()
    rig.engine("a")
    rig.node("elsewhere", chain(1))
    first = rig.schedule("first")
    assert row(first) == (64, 64, 0) and first.source == "elsewhere"
    second = rig.schedule("second", chain(2))
    assert row(second) == (0, 0, 0), "nobody has that one"
    fleet = rig.scheduler.crew(WHOSE)[0].fleet
    busy = fleet.hosts["arrives"].max() - rig.now
    # 64 blocks of 16 tokens of 100 KB over 10 GB/s.
    assert busy == pytest.approx(64 * 16 * 1e5 / 1e10, rel=0.1)
    assert busy == fleet.hosts["leaves"].max() - rig.now


def test_blocks_in_hbm_are_had_as_soon_as_those_in_dram() -> None:
    rig = Rig()
    rig.engine("a", ssd=TransferCost(1e-4, 1e6))
    rig.node("node of a", chain(1), IN_HBM)
    assert row(rig.schedule()) == (64, 0, 0)


def test_blocks_on_ssd_are_read_and_priced_as_that() -> None:
    rig = Rig()
    rig.engine("a")
    rig.node("node of a", chain(1), ON_SSD)
    assert row(rig.schedule()) == (64, 0, 64)
    slow = Rig()
    slow.engine("a", ssd=TransferCost(1e-4, 1e6))
    slow.node("node of a", chain(1), ON_SSD)
    blocks, _, read = row(slow.schedule())
    assert blocks == read == 0, "to compute them is faster"


@pytest.mark.parametrize(
    ("node", "tiers", "computes"),
    [
        ("node of a", IN_DRAM, (1.0, 1_023.0)),
        ("nobody's", IN_DRAM, (1_024.0, 0.0)),
        ("elsewhere", IN_DRAM, None),
        ("node of a", ON_SSD, None),
    ],
)
def test_what_is_computed_is_remembered_of_prompts_for_which_nothing_is_brought(
    node: str, tiers: int, computes: tuple[float, float] | None
) -> None:
    rig = Rig()
    rig.engine("a")
    rig.node(node, chain(2 if node == "nobody's" else 1), tiers)
    rig.schedule("r", chain(1), tokens=1_024)
    assert rig.in_flight.prompts["r"].computes == computes


def test_of_a_prefix_that_is_partly_in_memory_the_rest_is_read() -> None:
    rig, prints = Rig(), chain(1)
    rig.engine("a")
    rig.table.begin("node of a")
    rig.table.add("node of a", prints, np.array([IN_DRAM] * 30 + [ON_SSD] * 34, np.uint8))
    rig.table.finish("node of a")
    rig.named.append("node of a")
    decision = rig.schedule()
    assert row(decision) == (64, 0, 34) and decision.there == 30


def test_a_node_that_may_not_be_named_has_nothing() -> None:
    rig = Rig()
    rig.engine("a")
    rig.node("node of a", chain(1))
    rig.named.clear()
    assert row(rig.schedule()) == (0, 0, 0)
    rig.named.append("node of a")
    assert row(rig.schedule("at once")) == (64, 0, 0), "it is coming there anyway"
    rig.now += 1.0
    decision = rig.schedule("later")
    assert row(decision) == (64, 0, 0) and decision.there == 64


def test_what_is_being_computed_counts_as_there() -> None:
    rig = Rig()
    engines = [rig.engine(name) for name in "abc"]
    first = rig.sent_to("first", chain(1))
    second = rig.schedule("second", chain(1))
    assert second.prefill is not None and second.prefill.facts.engine_id == first
    assert row(second)[0] == 64 and second.there == 0
    engine = next(one for one in engines if one.facts.engine_id == first)
    rig.in_flight.ended("first", engine, rig.now)
    assert row(rig.schedule("third", chain(1)))[0] == 64, "the second is still on its way"
    for request in ("second", "third"):
        rig.in_flight.given_up(request, engine, rig.now)
    assert row(rig.schedule("fourth", chain(1)))[0] == 0
    rig.check()


def test_the_shortest_goes_first_so_a_long_queue_delays_it_little() -> None:
    rig = Rig()
    rig.engine("a")
    for number in range(5):
        rig.schedule(f"long {number}", chain(number), tokens=20_000)
    short = rig.schedule("short", chain(9, 1), tokens=16)
    assert short.row is not None and short.row[WAIT] == 0
    long = rig.schedule("long", chain(10), tokens=20_000)
    assert long.row is not None and long.row[WAIT] == pytest.approx(5 * 2.01 + 0.0116)


def test_nobody_waits_longer_than_its_target() -> None:
    rig = Rig(margin=1.0)
    rig.engine("a")
    for number in range(9):
        rig.schedule(f"{number}", chain(number), tokens=10_000, ttft=10.0)
    with pytest.raises(Overloaded, match="10 s are wanted: a, the soonest of 1") as caught:
        rig.schedule("one more", chain(20), tokens=10_000, ttft=10.0)
    assert 0 < caught.value.retry_after_ms <= RETRY_MS_MAX
    assert len(rig.in_flight.prompts) == 9
    rig.schedule("it may wait", chain(20), tokens=10_000, ttft=20.0)
    with pytest.raises(Overloaded):
        rig.schedule("it has waited", chain(21), tokens=10_000, ttft=20.0, waited=15.0)
    rig.check()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    load=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    waited=st.floats(0.0, 60.0),
)
def test_a_refusal_changes_nothing(seed: int, load: list[int], waited: float) -> None:
    rig = Rig(seed)
    for number, prompts in enumerate(load):
        engine = rig.engine(f"e{number}")
        for one in range(prompts):
            rig.in_flight.accepted(f"{number} {one}", engine, 2.0, chain(one, 8), rig.now)
    crew, in_flight = rig.scheduler.crew(WHOSE)
    before = [one.copy() for one in (*crew.fleet, *in_flight.expected)]
    with pytest.raises(Overloaded):
        rig.schedule("late", chain(1), tokens=100_000, waited=waited, ttft=9.0)
    for then, now in zip(before, (*crew.fleet, *in_flight.expected), strict=True):
        assert (then == now).all()
    assert len(in_flight.prompts) == sum(load)
    rig.check()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1_000), work=st.floats(0.001, 20.0), others=st.integers(1, 5))
def test_more_load_at_an_engine_never_makes_it_more_attractive(
    seed: int, work: float, others: int
) -> None:
    rig = Rig(seed, gated=0.0)
    engine = rig.engine("it")
    for number in range(others):
        other = rig.engine(f"e{number}")
        rig.in_flight.accepted(f"of {number}", other, 1.0 + number, chain(0, 0), rig.now)
    costs = []
    for number in range(4):
        found = rig.scheduler.consider(WHOSE, ask(prints=chain(1)), rig.now)
        assert found.rows is not None
        rows = dict(zip(found.considered, found.rows[:, FIRST_TOKEN], strict=True))
        costs.append((rows[engine], found.prefill is not engine))
        rig.in_flight.accepted(f"more {number}", engine, work, chain(2, 4), rig.now)
    assert costs == sorted(costs)


def test_of_equals_chance_decides_and_a_seed_decides_chance() -> None:
    def sent(seed: int) -> list[str]:
        rig = Rig(seed)
        for name in "abcd":
            rig.engine(name)
        found = []
        for number in range(200):
            found.append(rig.sent_to("r", chain(number)))
            rig.in_flight.drop("r", rig.now)
        return found

    assert sent(1) == sent(1) != sent(2)
    assert all(count > 25 for count in Counter(sent(1)).values()) and len(set(sent(1))) == 4


def test_a_request_that_is_asked_for_anew_counts_once() -> None:
    rig = Rig()
    for name in "ab":
        rig.engine(name)
    for _ in range(5):
        rig.schedule("the same")
    assert len(rig.in_flight.prompts) == 1
    rig.check()


def test_a_request_that_is_asked_for_anew_is_not_decoded_where_it_was_to_be() -> None:
    rig = Rig()
    rig.engine("prefills", decode=None)
    decodes = rig.engine("decodes", prefill=None)
    rig.schedule("r")
    rig.scheduler.place(WHOSE, ask("r"), rig.now)
    assert decodes.owed == 1
    rig.schedule("r")
    assert decodes.owed == 0 and "r" in rig.in_flight.room, "it wants room anew"
    rig.check()


def test_only_engines_of_the_callers_own_kind_are_chosen() -> None:
    rig = Rig()
    rig.engine("theirs", whose=("others", WHOSE[1], 0))
    rig.engine("of another model", whose=("team", b"m" * 32, 0))
    rig.engine("of another group", whose=("team", WHOSE[1], 1))
    with pytest.raises(Unavailable, match="no engine of yours reports"):
        rig.schedule()
    rig.engine("mine")
    assert {rig.sent_to(f"{number}") for number in range(20)} == {"mine"}
    rig.engine("decodes", prefill=None)
    assert {rig.sent_to(f"{number}") for number in range(20)} == {"mine"}


def test_where_nobody_prefills_it_is_said_and_where_nobody_decodes_too() -> None:
    rig = Rig()
    rig.engine("a", prefill=None)
    with pytest.raises(Unavailable, match="prefills"):
        rig.schedule()
    assert rig.scheduler.place(WHOSE, ask(), rig.now).decode is not None
    rig = Rig()
    rig.engine("a", decode=None)
    assert rig.schedule().decode is None
    with pytest.raises(Unavailable, match="decodes"):
        rig.scheduler.place(WHOSE, ask(), rig.now)


def test_decoding_goes_where_steps_stay_short_and_counts_there_at_once() -> None:
    rig = Rig()
    for name in "ab":
        rig.engine(name, decode=DecodeCost(0.01, 1e-3, 0.0))
    placed = [rig.scheduler.place(WHOSE, ask(f"{n}"), rig.now).decode for n in range(10)]
    assert set(Counter(placed).values()) == {5}
    rig.check()


def test_what_is_prefilled_at_an_engine_that_decodes_too_stays_there() -> None:
    rig = Rig()
    for name in "abc":
        rig.engine(name)
    for number in range(12):
        decided = rig.schedule(f"{number}", chain(number))
        assert decided.decode is decided.prefill
        placed = rig.scheduler.place(WHOSE, ask(f"{number}", chain(number)), rig.now)
        assert placed.decode is decided.prefill, "the first place was its own"


def test_a_request_that_fits_nowhere_stays_parked() -> None:
    rig = Rig()
    engine = rig.engine("a", room_tokens=3_000)
    rig.scheduler.place(WHOSE, ask("one"), rig.now)
    with pytest.raises(Overloaded, match="no engine has room for 2000 tokens more") as caught:
        rig.scheduler.place(WHOSE, ask("two", tokens=2_000), rig.now)
    assert caught.value.retry_after_ms
    rig.in_flight.decoding("one", engine, rig.now)
    assert rig.scheduler.place(WHOSE, ask("two", tokens=2_000), rig.now).decode is engine
    rig.check()


def test_an_engine_that_falls_silent_is_chosen_no_more_and_what_it_had_is_gone() -> None:
    rig = Rig()
    silent, heard = rig.engine("silent"), rig.engine("heard")
    for number in range(10):
        rig.schedule(f"{number}", chain(number))
    rig.now += REPORT_SILENCE_SECONDS
    heard.heard = rig.now - 0.1
    assert rig.scheduler.sweep(rig.now) == ["silent"]
    assert not rig.scheduler.has(WHOSE, silent)
    assert {one.engine for one in rig.in_flight.prompts.values()} <= {heard}
    assert {rig.sent_to(f"{number}", chain(number)) for number in range(10)} == {"heard"}
    rig.check()


def test_an_engine_that_begins_anew_takes_its_own_place() -> None:
    rig = Rig()
    first = rig.engine("a")
    rig.schedule("lost")
    second = rig.engine("a", address="127.0.0.1:7501")
    assert rig.scheduler.has(WHOSE, second) and not rig.scheduler.has(WHOSE, first)
    rig.scheduler.leave(WHOSE, first, rig.now)  # its stream ends later
    decision = rig.schedule()
    assert decision.prefill is second and decision.row is not None and decision.row[WAIT] == 0
    rig.check()


def test_engines_of_one_namespace_have_blocks_of_one_kind() -> None:
    rig = Rig()
    rig.engine("a")
    with pytest.raises(Invalid, match=r"engine.block_tokens = 32: other engines .* say 16"):
        rig.engine("b", block_tokens=32)
    rig.engine("a", block_tokens=32)  # it alone may be another


def test_no_tenant_takes_all_places() -> None:
    rig, taken = Rig(), 0
    with pytest.raises(Overloaded, match="no tenant takes all"):
        for number in range(CREWS_MAX):
            rig.engine("a", whose=("greedy", number.to_bytes(32, "little"), 0))
            taken = number + 1
    assert taken == CREWS_MAX * 3 // 4
    rig.engine("a", whose=("late", b"n" * 32, 0))
    rig.check()


def test_what_was_reported_changes_what_is_decided() -> None:
    rig = Rig()
    crew_engine = rig.engine("a", prefill=PrefillCost(0.01, 1e-3, 0.0))
    before = rig.schedule("r").row
    assert crew_engine.prefill is not None
    for _ in range(50):
        crew_engine.prefill.observe(1_000, 0, 0.11)
    rig.scheduler.crew(WHOSE)[0].prefilled(crew_engine, rig.now)
    after = rig.schedule("r").row
    assert before is not None and after is not None
    assert after[WORK] < 0.3 * before[WORK]


def test_hundreds_of_engines_and_nodes_come_and_go() -> None:
    rig, dice = Rig(), np.random.default_rng(3)
    for round_ in range(4):
        engines = [rig.engine(f"e{n}") for n in range(int(dice.integers(20, 150)))]
        for number in range(30):
            rig.node(f"{round_} {number}", chain(number)[: int(dice.integers(1, 64))])
        for number in range(60):
            rig.schedule(f"{number}", chain(number % 30))
            rig.now += 0.05
        rig.check()
        for number in range(30):
            rig.table.forget(f"{round_} {number}")
        rig.named.clear()
        for engine in engines[: len(engines) // 2]:
            rig.scheduler.leave(WHOSE, engine, rig.now)
        rig.check()


def test_what_could_not_be_kept_track_of_is_remembered_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crews, "IN_FLIGHT_MAX", 4)
    rig = Rig()
    rig.engine("a")
    for request in "123":
        rig.schedule(request)
    with pytest.raises(Overloaded, match="no more are kept track of"):
        rig.schedule("4")
    decided = rig.scheduler.decided(WHOSE, "4")
    assert decided is not None and "no more are kept" in sentence_of(decided)
    assert decided.prefill is None, "it was sent to nobody"
    assert not explain(rig.scheduler, decided, False).HasField("plan")
    rig.check()
