"""A load replayed on a cluster under a policy, in virtual time: the same seed, the same outcome.

The policy is the conductor's own compiled code. The simulator is compiled at its first run,
which takes minutes, and kept on disk.
"""

from __future__ import annotations

from typing import Any

from kvstore.kernels import simulation
from kvstore.kernels.sim_world import World
from kvstore.planner import outcome, world
from kvstore.planner.cluster import Cluster
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome
from kvstore.planner.policies import Policy
from kvstore.planner.world import Doubt

SURE = Doubt()


def ran(load: Load, cluster: Cluster, policy: Policy, seed: int, doubt: Doubt = SURE) -> World:
    """The simulated cluster after the last of the load's requests has ended."""
    built = world.build(load, cluster, policy, seed, doubt)
    simulation.run(built)
    return built


def replay(load: Load, cluster: Cluster, policy: Policy, seed: int, doubt: Doubt = SURE) -> Outcome:
    """What becomes of a load. Raises ConfigError for a cluster or doubt that cannot be."""
    return outcome.of(ran(load, cluster, policy, seed, doubt))


def compiled() -> bool:
    """Whether a run can begin at once: the simulator's code is on disk, made of its sources as they
    are. What numba's index of it says of others counts for nothing, though their code lies there.
    """
    kept: Any = getattr(simulation.run, "_cache", None)  # no public name tells it
    index = getattr(kept, "_cache_file", None)  # none where no code is kept
    return index is not None and bool(index._load_index())
