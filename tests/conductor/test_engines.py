"""A row is an engine's while it reports; links are learned by host, and forgotten with it."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.conductor.choices import RULES
from kvstore.conductor.engines import SSD_SECONDS, Crew
from kvstore.core.cost import PrefillCost, TransferCost
from kvstore.kernels.fleet import prefill_seconds
from tests.conductor.crews import facts


def test_rows_are_given_out_again_and_what_stood_there_is_gone() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    first = crew.enter(facts("a"), 0, 5.0)
    row = crew.fleet.engines[first.number]
    assert row["prefills"] and row["decodes"] and row["room"] == 100_000
    crew.leave(first, 6.0)
    assert crew.fleet.engines[first.number] == np.zeros((), crew.fleet.engines.dtype)
    second = crew.enter(facts("b", prefill=None), 0, 6.0)
    assert second.number == first.number and not crew.fleet.engines[second.number]["prefills"]
    crew.check()


def test_a_crew_grows_and_keeps_what_it_knows() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    engines = [crew.enter(facts(f"{number}"), number, 0.0) for number in range(100)]
    for number, engine in enumerate(engines):
        engine.batch = number
        crew.load(engine)
    crew.enter(facts("one more"), 500, 0.0)
    crew.check()
    assert [crew.fleet.engines[one.number]["batch"] for one in engines] == list(range(100))
    assert crew.fleet.hosts["link_seconds"][99] == pytest.approx(1e-10)
    assert len(crew.found.coming) == len(crew.priced) == len(crew.fleet.engines)
    assert len(crew.found.dram) == len(crew.fleet.hosts) > 500


def test_a_host_that_no_engine_calls_its_own_slows_nobody_down() -> None:
    crew = Crew(facts("a"), hosts=3, now=0.0)
    crew.enter(facts("a", ssd=None), 1, 0.0)
    hosts = crew.fleet.hosts
    assert hosts["link_seconds"][2] == 0 and hosts["ssd_seconds"][2] == SSD_SECONDS
    assert hosts["ssd_seconds"][1] == np.inf, "this one has no SSD, as its engine says"


def test_what_links_carry_is_learned_from_all_engines_of_the_host() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    engines = [crew.enter(facts(name, link=TransferCost(0, 1e9)), 0, 0.0) for name in "ab"]
    for _ in range(30):
        for engine in engines:
            crew.moved(engine.host, 1e9, 4.0)
    assert crew.fleet.hosts["link_seconds"][0] == pytest.approx(4e-9, rel=0.2)
    crew.forget_host(0)
    assert crew.fleet.hosts["link_seconds"][0] == 0 and crew.fleet.hosts["arrives"][0] == 0


def test_a_burst_does_not_make_engines_scarce_and_a_minute_of_work_does() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    for name in "ab":
        crew.enter(facts(name), 0, 0.0)
    crew.look(RULES, 100.0)
    assert crew.busy == 0.0
    crew.fleet.engines["busy_until"][0] = 1_000.0
    crew.look(RULES, 101.0)
    assert crew.busy == pytest.approx(0.5 * (1 - np.exp(-1 / 60)))
    crew.look(RULES, 100.0)  # a moment that is over already changes nothing
    crew.look(RULES, 400.0)
    assert crew.busy == pytest.approx(0.5, abs=0.01)
    crew.look(RULES, 2_000.0)
    assert crew.busy < 1e-6


def came(crew: Crew, host: int, source: int, seconds_a_byte: float, times: int = 300) -> None:
    """Transfers of several sizes: of equal ones nobody can tell what asking takes."""
    for number in range(times):
        size = (1e8, 1e9, 1e10)[number % 3]
        crew.fetched(host, source, size, 1e-3 + size * seconds_a_byte)


def test_the_slower_end_is_what_a_transfer_between_two_hosts_says_something_of() -> None:
    crew = Crew(facts("quick"), hosts=2, now=0.0)
    crew.enter(facts("quick"), 0, 0.0)
    crew.enter(facts("slow", link=TransferCost(1e-3, 1e9)), 1, 0.0)
    came(crew, 0, 1, 2e-9)
    quick, slow = crew.fleet.hosts["link_seconds"][:2]
    assert slow == pytest.approx(2e-9, rel=0.05), "twice what it said"
    assert quick == pytest.approx(1e-10, rel=0.05), "it was not what took so long"
    came(crew, 0, 1, 5e-11, times=2_000)
    assert (crew.fleet.hosts["link_seconds"][:2] < 8e-11).all(), "both are as quick as that"


def test_what_came_within_a_domain_or_from_another_rack_says_nothing_of_the_link() -> None:
    near = {"domain": "d", "domain_bytes_per_second": 1e12, "rack": "r"}
    crew = Crew(facts("a"), hosts=3, now=0.0)
    for host, labels in enumerate((near, near, {"rack": "s", "far_bytes_per_second": 5e9})):
        crew.enter(facts(f"{host}", **labels), host, 0.0)
    came(crew, 0, 1, 4e-12)
    came(crew, 0, 2, 5e-10)
    hosts = crew.fleet.hosts[:3]
    assert hosts["link_seconds"] == pytest.approx([1e-10] * 3, rel=0.05)
    assert max(hosts["domain_seconds"][:2]) == pytest.approx(4e-12, rel=0.1)
    assert hosts["far_seconds"][2] == pytest.approx(5e-10, rel=0.1)
    crew.check()


def test_what_nobodys_host_carried_changes_nothing() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    crew.enter(facts("a"), 0, 0.0)
    before = crew.fleet.hosts.copy()
    crew.fetched(5, 0, 1e9, 9.0)
    crew.fetched(0, 50, 1e9, 9.0)
    crew.moved(5, 1e9, 9.0)
    crew.read(0, 1e9, 9.0)
    assert (crew.fleet.hosts["link_seconds"][1:] == before["link_seconds"][1:]).all()


def test_an_engine_that_says_nothing_costs_what_its_kin_do_and_a_new_one_at_once() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    speaks, silent = crew.enter(facts("a"), 0, 0.0), crew.enter(facts("b"), 0, 0.0)
    for second in range(1, 60):
        assert speaks.prefill is not None
        speaks.prefill.observe(1_000, 0, 0.033)
        crew.prefilled(speaks, float(second))
        crew.look(RULES, float(second))
    late = crew.enter(facts("late"), 0, 60.0)
    other = crew.enter(facts("other", prefill=PrefillCost(1.0, 1e-3, 0.0)), 0, 60.0)
    rows = crew.fleet.engines
    learned = rows["prefill_b"][speaks.number]
    assert learned < 0.5e-4
    assert rows["prefill_b"][silent.number] == pytest.approx(learned, rel=0.2)
    assert rows["prefill_b"][late.number] == pytest.approx(learned, rel=0.2)
    assert rows["prefill_b"][other.number] == 1e-3, "it is of another kind"


def test_engines_of_one_kind_begin_with_the_costs_of_the_first() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    first, second = PrefillCost(0.01, 1e-3, 0.0), PrefillCost(0.01, 2e-3, 0.0)
    crew.enter(facts("decodes", kind="CPU", prefill=None), 0, 0.0)
    entered = [
        crew.enter(facts(name, kind=kind, prefill=prefill), 0, 0.0)
        for name, kind, prefill in (
            *(("a", "CPU", first), ("b", "CPU", second), ("c", "GPU", second)),
            *(("d", "", second), ("e", "CPU", None)),
        )
    ]
    costs = [one.prefill and one.prefill.cost.b for one in entered]
    assert costs == [first.b, first.b, second.b, second.b, None]
    rows = crew.fleet.engines
    assert [float(rows["prefill_b"][one.number]) for one in entered[:3]] == [1e-3, 1e-3, 2e-3]


def test_reports_that_scatter_set_an_engine_less_apart_from_its_kin() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    both = [crew.enter(facts(name), 0, 0.0) for name in "ab"]
    for second in range(1, 20):
        for engine, factor in zip(both, (1.0, 1.3), strict=True):
            assert engine.prefill is not None
            engine.prefill.observe(1_000, 0, 0.1 * factor * (1.4 if second % 2 else 0.7))
            crew.prefilled(engine, float(second))
        crew.look(RULES, float(second))
    said = [0.0 if one.prefill is None else one.prefill.cost.seconds(1_000, 0) for one in both]
    rows = crew.fleet.engines[[one.number for one in both]]
    reckoned = [float(prefill_seconds(row, 1_000.0, 0.0)) for row in rows]
    assert said[1] > 1.2 * said[0]
    assert 1.0 < reckoned[1] / reckoned[0] < 0.5 + 0.5 * said[1] / said[0]
