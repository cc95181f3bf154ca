"""A load replayed on a cluster under a policy, in virtual time: the same seed, the same outcome.

The policy is the conductor's own compiled code. The simulator is compiled at its first run,
about a minute, and kept on disk.
"""

from __future__ import annotations

from pathlib import Path

from kvstore.kernels import simulation
from kvstore.kernels.sim_world import World
from kvstore.planner import outcome, world
from kvstore.planner.cluster import Cluster
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome
from kvstore.planner.policies import Policy
from kvstore.planner.world import Doubt

SURE = Doubt()

# numba would keep the code of a kernel whose other files have changed since.


def ran(load: Load, cluster: Cluster, policy: Policy, seed: int, doubt: Doubt = SURE) -> World:
    """The simulated cluster after the last of the load's requests has ended."""
    built = world.build(load, cluster, policy, seed, doubt)
    simulation.run(built)
    return built


def replay(load: Load, cluster: Cluster, policy: Policy, seed: int, doubt: Doubt = SURE) -> Outcome:
    """What becomes of a load. Raises ConfigError for a cluster or doubt that cannot be."""
    return outcome.of(ran(load, cluster, policy, seed, doubt))


def compiled() -> bool:
    """Whether a run can begin at once: the simulator's code is on disk."""
    cache = Path(simulation.__file__).parent / "__pycache__"
    return any(cache.glob("simulation.run-*.nbc"))
