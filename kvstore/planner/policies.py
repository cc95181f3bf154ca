"""Ways to run a cluster, by name: ours, and nine rivals as their authors published them.

A policy is how a router chooses, what it refuses, and in which order engines work. A rival's knobs
have the published values; its grid has others that a careful operator would try, so that it can be
compared at its best. `gated` gives any rival what ours has of a gate: what cannot be in time is
refused or dropped, and what no decoding engine has room for is not handed over.

What a rival's knobs are is told by the docstrings of `kvstore.kernels.rivals`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvstore.errors import ConfigError
from kvstore.kernels import rules
from kvstore.planner.presets import named as _named

Knobs = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """Switches are numbers, as the simulation has them: 1 is on, 0 is off."""

    name: str
    router: str  # of ROUTERS
    knobs: Knobs = ()
    gated: float = 0.0  # refuse what is expected to be late, drop what has become so
    check: float = 0.0  # refuse what no decoding engine has room for once it is prefilled
    early: float = 0.0  # refuse what none has room for when it comes
    park: float = 0.0  # keep what is prefilled in the pool until one has room
    shortest_first: float = 0.0  # else the first that came
    aging: float = 0.0  # seconds of size that a second of waiting makes up for
    charge: float = 0.0  # seconds of others' waiting that count as one of a prompt's own
    margin: float = 1.0  # times the wait that has to fit before the prefill: others will come
    fetch: float = 1.0  # prefixes from other hosts
    foresight: float = 0.0  # what is being computed counts as if it were there
    forecast: float = 0.0  # refuse what is to wait for room longer than this share of the target
    patience: float = 0.0  # tokens of a parked prompt that a second of waiting makes up for
    crowding: float = 0.0  # what is new goes to hosts that were given less, by a charge of so much
    hurry: float = 0.0  # lines are kept short where many are refused
    fair: float = 0.0  # who has had more than a fair share is let in after others
    places: float = 1.0  # know which hosts are of one rack or NVLink domain
    pace: float = 1.0  # share of the TPOT target that a step may take when one more is let in

    def with_gate(self) -> Policy:
        """The same with a gate: Mooncake's own also refuses early."""
        early = 1.0 if self.router == "mooncake" else 0.0
        return replace(self, gated=1.0, check=1.0, early=early, pace=rules.OURS.pace)


ROUTERS = (
    *("ours", "random", "round-robin", "least-loaded", "sglang", "mooncake"),
    *("dynamo", "llm-d", "preble", "lmetric"),
)  # numbered as in `kvstore.kernels.rivals`

OURS = Policy(
    *("ours", "ours"),
    gated=rules.OURS.gated,
    shortest_first=rules.OURS.shortest_first,
    aging=rules.OURS.aging,
    charge=rules.OURS.charge,
    margin=rules.OURS.margin,
    fetch=rules.OURS.fetch,
    foresight=rules.OURS.foresight,
    hurry=rules.OURS.hurry,
    fair=rules.OURS.fair,
    crowding=rules.OURS.crowding,
    park=1.0,
    forecast=rules.OURS.forecast,
    patience=rules.OURS.patience,
    pace=rules.OURS.pace,
)

# The first of each is the published one.
_KNOBS: dict[str, tuple[Knobs, ...]] = {
    "random": ((),),
    "round-robin": ((),),
    "least-loaded": ((),),
    "sglang": ((0.5, 32, 1.1), (0.3, 64, 1.5), (0.5, 8, 1.1), (0.5, 2, 1.1), (0.2, 4, 1.5)),
    "mooncake": ((1.0,), (2.0,), (4.0,), (16.0,)),
    "dynamo": ((1.0, 1.0, 0.25), (2.0, 1.0, 0.25), (4.0, 1.0, 0.25), (1.0, 0.0, 0.25)),
    "llm-d": ((3, 2, 2), (1, 2, 2), (3, 0, 2), (3, 0, 6), (1, 0, 4)),
    "preble": ((1.5, 0.3), (1.2, 0.3), (2.5, 0.3), (1.5, 1.0)),
    "lmetric": ((),),
}
# These put a prompt into their tree of prefixes as soon as they have sent it somewhere.
_FORESEE = {"sglang", "preble"}

RIVALS = tuple(
    Policy(name, name, grid[0], foresight=float(name in _FORESEE)) for name, grid in _KNOBS.items()
)
POLICIES = {one.name: one for one in (OURS, *RIVALS)}


def named(name: str) -> Policy:
    """A policy by name, a rival with the gate; `raw-NAME` is one without. Raises ConfigError."""
    bare = name.lower().removeprefix("raw-")
    policy = _named("--policy", bare, POLICIES)
    if bare == name.lower():
        return policy if policy is OURS else policy.with_gate()
    if policy is OURS:
        raise ConfigError(f"--policy {name}: ours is its gate: there is none without")
    return replace(policy, name=f"raw-{policy.name}")


def grid(policy: Policy) -> tuple[Policy, ...]:
    """The same router with each setting worth trying, what it was given first."""
    if policy.router not in _KNOBS:
        return (policy,)
    others = [replace(policy, knobs=knobs) for knobs in _KNOBS[policy.router]]
    # To look ahead at what is being computed is not taught to those that were published without.
    others += [replace(one, foresight=0.0) for one in others if one.foresight]
    others += [replace(one, early=0.0) for one in others if one.early]
    others += [replace(one, fetch=0.0) for one in others]
    return (policy, *(one for one in others if one != policy))
