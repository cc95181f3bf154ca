"""A row is an engine's while it reports; links are learned by host, and forgotten with it."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.conductor.engines import SSD_SECONDS, Crew
from kvstore.core.cost import TransferCost
from tests.conductor.crews import facts


def test_rows_are_given_out_again_and_what_stood_there_is_gone() -> None:
    crew = Crew(facts("a"), hosts=1)
    first = crew.enter(facts("a"), 0, 5.0)
    row = crew.fleet.engines[first.number]
    assert row["prefills"] and row["decodes"] and row["room"] == 100_000
    crew.leave(first)
    assert crew.fleet.engines[first.number] == np.zeros((), crew.fleet.engines.dtype)
    second = crew.enter(facts("b", prefill=None), 0, 6.0)
    assert second.number == first.number and not crew.fleet.engines[second.number]["prefills"]
    crew.check()


def test_a_crew_grows_and_keeps_what_it_knows() -> None:
    crew = Crew(facts("a"), hosts=1)
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
    crew = Crew(facts("a"), hosts=3)
    crew.enter(facts("a", ssd=None), 1, 0.0)
    hosts = crew.fleet.hosts
    assert hosts["link_seconds"][2] == 0 and hosts["ssd_seconds"][2] == SSD_SECONDS
    assert hosts["ssd_seconds"][1] == np.inf, "this one has no SSD, as its engine says"


def test_what_links_carry_is_learned_from_all_engines_of_the_host() -> None:
    crew = Crew(facts("a"), hosts=1)
    engines = [crew.enter(facts(name, link=TransferCost(0, 1e9)), 0, 0.0) for name in "ab"]
    for _ in range(30):
        for engine in engines:
            crew.moved(engine, 1e9, 4.0, False)
    assert crew.fleet.hosts["link_seconds"][0] == pytest.approx(4e-9, rel=0.2)
    crew.forget_host(0)
    assert crew.fleet.hosts["link_seconds"][0] == 0 and crew.fleet.hosts["arrives"][0] == 0
