"""Moments are rounded, the more the later they are, and a simulation ends all the same."""

from __future__ import annotations

import numpy as np

from kvstore.core.hardware import Fabric
from kvstore.kernels.sim_world import SERVED
from kvstore.planner import world
from kvstore.planner.replay import ran
from tests.planner.clusters import PLAIN, apart, cluster

SLOW = Fabric("slow", 1e3, 0.0)  # bytes a second: KV is on its way for years


def test_a_batch_is_done_when_that_was_foreseen_however_late_it_is() -> None:
    """So late, a second has less digits left than a step wants."""
    load = apart(np.arange(300.0), [400_000] * 300, output=1_000)
    told = ran(load, cluster(1, 1, fabric=SLOW), PLAIN, 1)
    world.check(told)
    assert told.requests["finished"].max() > 1e10
    assert (told.requests["status"] == SERVED).all()
    prefilled, moved, done = 300, 300, 300
    assert told.numbers[1] == prefilled + moved + done, "each happens once"
