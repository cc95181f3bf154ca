"""How long the planner takes for a large fleet: a million requests on a thousand engines.

Conversations are made up from a seed and replayed by the policy that the conductor runs, at a rate
that keeps the engines busy without drowning them; that share and the requests in time are printed
beside the time, since an idle fleet is quickly simulated. Making the load up, filling in the world
and compiling are not timed; one thread works. Memory is the process's at its highest.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.kernels import simulation
from kvstore.planner import outcome, presets, replay, world
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.policies import Policy, named
from kvstore.planner.synthetic_turns import MultiTurn
from kvstore.planner.world import Doubt

RUNS = 1
TAKES = ("requests",)  # options of the command
REQUESTS = 1_000_000
PREFILL, DECODE = 500, 500
RATE = 3_000.0  # requests a second: two thirds of what these engines bear
GOAL_S = 60.0
SEED = 1
POLICIES = ("ours", "mooncake", "lmetric")  # the first counts


def run(runs: int, say: Callable[[str], None], requests: int | None = None) -> Report:
    count = requests or REQUESTS
    say(f"making up {count:,} requests")
    load = _load(count)
    if not replay.compiled():
        say("compiling the simulator: a minute, once")
    for name in POLICIES:
        replay.replay(load.window(0.0, 1.0), _cluster(), named(name), SEED)
    rows = [_row(load, named(name), runs, say, counted=name == POLICIES[0]) for name in POLICIES]
    return Report(
        name="simulate",
        unit="s",
        against=f"{GOAL_S:.0f} s for {REQUESTS:,} requests on {PREFILL + DECODE} engines, one core",
        ratio_is="seconds / the goal, in proportion to the requests",
        goal=1.0,
        sense=Goal.AT_MOST,
        rows=tuple(rows),
    )


def _load(count: int) -> Load:
    """So many requests: the load is made a little too long and cut."""
    made = MultiTurn(Arrivals(RATE, 1.05 * count / RATE + 2)).load(SEED)
    return made.window(0.0, float(made.arrival[count])) if count < len(made) else made


def _cluster() -> Cluster:
    card = presets.CARDS["a100"]
    pools = (Pool(Role.PREFILL, PREFILL, card, 8), Pool(Role.DECODE, DECODE, card, 8))
    shape, fabric = presets.MODELS["llama-3-70b"], presets.LINKS["rdma-200"]
    return Cluster(shape, pools, fabric, dram_bytes=250 * 10**9)


def _row(
    load: Load, policy: Policy, runs: int, say: Callable[[str], None], *, counted: bool
) -> Row:
    taken = []
    for _ in range(runs):
        built = world.build(load, _cluster(), policy, SEED, Doubt())
        began = time.perf_counter()
        simulation.run(built)
        taken.append(time.perf_counter() - began)
    told = outcome.of(built)
    say(f"{policy.name}: {taken[-1]:.1f} s, {told.share:.1%} in time")
    limit = GOAL_S * len(load) / REQUESTS
    spread = Spread.of([one / limit for one in taken])
    value = spread.median * limit
    return Row(
        f"{policy.name}, {len(load):,} requests",
        {"requests": len(load), "prefill": PREFILL, "decode": DECODE},
        runs,
        value,
        limit,
        spread.median,
        spread,
        counted,
        also={
            "events": int(built.numbers[1]),
            "us_a_request": 1e6 * value / len(load),
            "rate": told.rate,
            "share_in_time": told.share,
            "hits": told.hits.all,
            "prefill_busy": told.prefill_busy,
            "decode_full": told.decode_full,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
    )
