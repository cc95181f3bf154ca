"""Labels are those of the hosts that there are, and what is near is preferred by them."""

from __future__ import annotations

import pytest

from kvstore.conductor.decision import Decision
from kvstore.conductor.engines import Crew
from kvstore.kernels.fleet import UNLABELLED
from tests.conductor.crews import WHOSE, Rig, ask, chain, facts


def test_labels_are_numbered_while_a_host_has_them_and_forgotten_with_the_last() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    crew.enter(facts("a"), 0, 0.0)
    assert len(crew.fleet.near) == 0, "nobody is labelled: choices look at no labels"
    there = {"domain": "d", "domain_bytes_per_second": 5e11}
    for number, rack in enumerate(("r1", "r1", "r2"), 1):
        crew.enter(facts(f"{number}", rack=rack, **there), number, 0.0)
        crew.check()
    hosts = crew.fleet.hosts
    assert hosts["rack"][0] == hosts["domain"][0] == UNLABELLED
    assert hosts["rack"][1] == hosts["rack"][2] != hosts["rack"][3]
    assert len(set(hosts["domain"][1:4])) == 1 and hosts["domain"][1] not in hosts["rack"]
    assert hosts["domain_seconds"][3] == pytest.approx(2e-12)
    assert hosts["far_seconds"][3] == 0, "as the link"
    for number in (1, 2, 3):
        crew.forget_host(number)
        crew.check()
    assert len(crew.fleet.near) == 0 and (crew.fleet.hosts["domain"] == UNLABELLED).all()


def test_a_host_that_comes_back_elsewhere_stands_there() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    engine = crew.enter(facts("a", rack="r1", domain="d"), 0, 0.0)
    other = crew.enter(facts("b", rack="r1"), 1, 0.0)
    crew.leave(engine, 0.0)
    assert crew.fleet.hosts["rack"][0] == crew.fleet.hosts["rack"][1], "it may hold blocks yet"
    crew.enter(facts("a", rack="r2", far_bytes_per_second=1e9), 0, 1.0)
    crew.check()
    assert crew.fleet.hosts["rack"][0] not in (UNLABELLED, crew.fleet.hosts["rack"][other.host])
    assert crew.fleet.hosts["domain"][0] == UNLABELLED
    assert crew.fleet.hosts["far_seconds"][0] == pytest.approx(1e-9)


def test_labels_outlive_that_a_crew_grows() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    for number in range(200):
        crew.enter(facts(f"{number}", rack=f"r{number % 7}", domain=f"d{number}"), number, 0.0)
    crew.check()
    racks = crew.fleet.hosts["rack"][:200]
    assert len(set(racks.tolist())) == 7
    assert all(racks[number] == racks[number % 7] for number in range(200))


def test_kv_goes_to_an_engine_that_decodes_near_it() -> None:
    rig = Rig()
    far = {"far_bytes_per_second": 5e7}
    near = {"domain": "d", "domain_bytes_per_second": 7e11}
    rig.engine("prefill", decode=None, rack="r1", **near, **far)
    for name, place in (("apart", {"rack": "r2"}), ("near", {"rack": "r1"} | near)):
        rig.engine(name, prefill=None, **place, **far)
    for number in range(8):
        request = f"{number}"
        rig.schedule(request, chain(number))
        placed = rig.scheduler.place(WHOSE, ask(request), rig.now)
        assert isinstance(placed, Decision) and placed.decode is not None
        assert placed.decode.facts.engine_id == "near"
    rig.check()


def test_it_is_known_by_which_ways_who_decodes_is_reached_whoever_comes_and_goes() -> None:
    crew = Crew(facts("a"), hosts=1, now=0.0)
    crew.enter(facts("a", decode=None, rack="r1"), 0, 0.0)
    near = crew.enter(facts("b", prefill=None, rack="r1"), 1, 0.0)
    crew.enter(facts("c", prefill=None, rack="r2"), 2, 0.0)
    assert crew.fleet.hosts["rack_decodes"][0]
    crew.leave(near, 0.0)
    assert not crew.fleet.hosts["rack_decodes"][0]
    crew.enter(facts("d", prefill=None), 3, 0.0)
    assert crew.fleet.hosts["rack_decodes"][0], "who is in no rack may be in any"
    crew.check()
