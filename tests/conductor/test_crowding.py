"""What nodes list anew is what their hosts were given; what is new goes where less was."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.conductor.choices import LOOK_SECONDS
from kvstore.core.cost import PrefillCost
from kvstore.core.fingerprints import IN_DRAM, ON_SSD, Prints
from kvstore.kernels.fleet import LATELY_SECONDS
from tests.conductor.crews import WHOSE, Rig, ask, chain

NOTHING = chain(0, 0)


def lists(rig: Rig, name: str, prints: Prints, tiers: int = IN_DRAM) -> None:
    """A node says that these are in those tiers now; somebody looks at it a moment later."""
    rig.table.change(name, prints, np.full(len(prints), tiers, np.uint8))
    rig.now += LOOK_SECONDS
    rig.scheduler.consider(WHOSE, ask(), rig.now)


def placed(rig: Rig) -> float:
    return float(rig.scheduler.crew(WHOSE)[0].fleet.hosts["placed"].sum())


@pytest.fixture
def rig() -> Rig:
    """Two engines, the second a tenth slower, at nodes that have nothing yet."""
    made = Rig()
    for name, each in (("quick", 1e-4), ("slow", 1.1e-4)):
        made.engine(name, prefill=PrefillCost(0.01, each, 0.0))
        made.node(f"node of {name}", NOTHING)
    made.scheduler.sweep(made.now)
    return made


def test_what_is_new_goes_to_the_host_that_was_given_less(rig: Rig) -> None:
    sent = []
    for number in range(20):
        sent.append(rig.sent_to("r", chain(number)))
        rig.in_flight.drop("r", rig.now)
        lists(rig, f"node of {sent[-1]}", chain(number))
    assert 5 < sent.count("slow") <= 10
    for number, engine in enumerate(sent):
        assert rig.sent_to("r", chain(number)) == engine, "and there it stays"


def test_only_what_came_to_memory_and_is_held_still_was_given(rig: Rig) -> None:
    lists(rig, "node of quick", chain(1), IN_DRAM)
    assert placed(rig) == 64
    lists(rig, "node of quick", chain(1), IN_DRAM | ON_SSD)
    lists(rig, "node of slow", chain(2), ON_SSD)
    assert placed(rig) == 64, "it was there, or is not in memory"
    lists(rig, "node of quick", chain(1)[10:], 0)
    assert placed(rig) == 10, "the rest was dropped"


def test_a_node_that_begins_anew_was_given_nothing(rig: Rig) -> None:
    lists(rig, "node of quick", chain(1))
    rig.node("node of quick", NOTHING)
    lists(rig, "node of quick", NOTHING)
    assert placed(rig) == 0


def test_what_a_host_was_given_fades(rig: Rig) -> None:
    lists(rig, "node of quick", chain(1))
    rig.scheduler.sweep(rig.now)
    before = placed(rig)
    rig.now += LATELY_SECONDS
    for engine in rig.scheduler.crew(WHOSE)[0].by_id.values():
        engine.heard = rig.now
    rig.scheduler.sweep(rig.now)
    assert placed(rig) == pytest.approx(before / np.e)
