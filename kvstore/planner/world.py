"""A simulated cluster before its first request, and what must hold after its last.

The one place that knows what the kernels want to have filled in. Everything random is drawn from
the seed: what engines really take, how far each prompt is from what is thought of it, the dice that
decide between equals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvstore.core.fit import BIAS_HALF_LIFE, HALF_LIFE
from kvstore.core.priors import kv_room
from kvstore.errors import ConfigError, InvariantError
from kvstore.kernels import fitting, rivals, sim_heap, sim_known, sim_world
from kvstore.kernels import fleet as fleets
from kvstore.kernels.crowd import CROWD
from kvstore.kernels.decision import mark_roles
from kvstore.kernels.fleet import NONE
from kvstore.kernels.prefill_price import unpriced
from kvstore.kernels.roles import ADVICE, WORK
from kvstore.kernels.room import DEMAND, PARKED
from kvstore.kernels.rules import Rules
from kvstore.kernels.sim_roles import BALANCE_SECONDS
from kvstore.kernels.sim_world import World
from kvstore.planner import bounds, spans, truth
from kvstore.planner.cluster import Cluster
from kvstore.planner.load import Load
from kvstore.planner.policies import ROUTERS, Policy

BATCH_MAX = 1_024  # sequences that an engine decodes at a time, as engines are mostly set at most
COMING_MAX = 2_000_000  # pairs of block and host that are being computed at a time
# Of virtual time, 23 days: of later moments what is left of a float64 does not tell the end of a
# step of a millisecond from the moment before it.
SECONDS_MAX = 2e6
KEEP, BIAS_KEEP = 0.5 ** (1 / HALF_LIFE), 0.5 ** (1 / BIAS_HALF_LIFE)  # of what was learned
FETCH_SECONDS = 5e-3  # asking, pinning and confirming, whatever is fetched

assert ROUTERS[rivals.SGLANG] == "sglang" and ROUTERS[rivals.LMETRIC] == "lmetric"
assert len(ROUTERS) == rivals.LMETRIC + 1


@dataclass(frozen=True, slots=True)
class Doubt:
    """How far a router is off. Raises ConfigError for what would make a prefill take no time."""

    error: float = 0.0  # each prompt's prefill is thought to take up to this share more or less
    bias: float = 0.0  # and all of them this share more (below 0: less) than they do
    noise: float = 0.05  # spread of what prefills really take: the sigma of its logarithm

    def __post_init__(self) -> None:
        bounds.number("error", self.error, 0, 0.95)
        bounds.number("bias", self.bias, self.error - 0.95, 10)
        bounds.number("noise", self.noise, 0, 2)


def build(load: Load, cluster: Cluster, policy: Policy, seed: int, doubt: Doubt) -> World:
    """Everything empty and idle, the load's requests to come. Raises ConfigError for a load that is
    too long."""
    if load.arrival[-1] > SECONDS_MAX:
        days = f"{load.arrival[-1] / 86_400:,.0f} days"
        most = f"{SECONDS_MAX / 86_400:.0f}"
        raise ConfigError(f"a load of {days}: at most {most} are simulated: take a part of it")
    count, engines = len(load), sum(pool.engines for pool in cluster.pools)
    token_bytes = cluster.shape.kv_bytes_per_token
    block_bytes = load.block_tokens * token_bytes
    times = truth.rows(cluster.shape, cluster.pools, seed)
    fleet, fits = _fleet(cluster, seed)
    placed = _placed(cluster, fleet)
    prefills = (fleet.engines["prefills"] | fleet.engines["switches"]).astype(np.int64)
    blocks, whole = int(load.blocks.max()) + 1, load.whole()
    running = np.zeros(engines, sim_world.RUNNING)
    for column in ("current", "line", "line_end"):
        running[column] = NONE
    running["role"] = sim_world.PREFILLS * fleet.engines["prefills"]
    running["role"] += sim_world.DECODES * fleet.engines["decodes"]
    queues = (engines, fleets.SIZES)
    knobs = np.zeros(rivals.KNOBS)
    knobs[: len(policy.knobs)] = policy.knobs
    world = World(
        requests=_requests(load, seed, doubt),
        blocks=load.blocks[whole].astype(np.int32),
        first=spans.offsets(load.input_tokens // load.block_tokens),
        engines=running,
        heads=np.full(queues, NONE),
        tails=np.full(queues, NONE),
        members=np.zeros((engines, BATCH_MAX), np.int64),
        until=np.zeros((engines, BATCH_MAX), np.int64),
        parked=np.zeros(count, PARKED),
        numbers=np.zeros(3, np.int64),
        demand=np.zeros(1, DEMAND),
        crowd=np.zeros(1, CROWD),
        clients=np.zeros((2, load.clients)),
        faded=np.zeros(1),
        work=np.zeros(1, WORK),
        advice=np.zeros(1, ADVICE),
        mean=np.zeros(2),
        fleet=placed if policy.places else fleet,
        places=placed.hosts.copy(),
        carried=np.zeros(fleets.WAYS),
        times=times,
        fits=fits,
        biases=_unbiased(engines),
        caches=sim_known.caches(
            blocks,
            prefills * (cluster.dram_bytes // block_bytes)
            + (1 - prefills) * (cluster.decode_dram_bytes // block_bytes),
            prefills * (cluster.ssd_bytes // block_bytes),
            min(int(whole.sum()), COMING_MAX),
            int(whole.sum()),
        ),
        tally=rivals.tally(engines),
        heap=sim_heap.heap(4 * count + 2 * len(cluster.failures) + 1_000),
        found=fleets.nothing(engines, engines),
        priced=unpriced(engines),
        on=np.zeros((3, -(-engines // 64)), np.uint64),
        dice=np.array([seed], np.uint64),
        knobs=knobs,
        # Whole numbers would be of another kind, for which all is compiled anew.
        setting=sim_world.Setting(
            policy=ROUTERS.index(policy.router),
            block_tokens=float(load.block_tokens),
            token_bytes=float(token_bytes),
            layers=float(cluster.shape.layers),
            reserve=float(load.output_tokens.mean()),
            early=float(policy.early),
            check=float(policy.check),
            holds=float(cluster.decode_dram_bytes > 0),
            park=float(policy.park),
        ),
        rules=_rules(cluster, policy),
    )
    for one in cluster.failures:
        engine = cluster.engine(one.role, one.number)
        sim_heap.push(world.heap, one.at_seconds, sim_world.FAILS, engine, 0)
        if one.seconds < math.inf:
            back = one.at_seconds + one.seconds
            sim_heap.push(world.heap, back, sim_world.RETURNS, engine, 0)
    if fleet.engines["switches"].any():
        sim_heap.push(world.heap, BALANCE_SECONDS, sim_world.BALANCES, NONE, 0)
    return world


def _rules(cluster: Cluster, policy: Policy) -> Rules:
    return Rules(
        ttft=float(cluster.ttft_seconds),
        tpot=float(cluster.tpot_seconds),
        pace=float(policy.pace),
        gated=float(policy.gated),
        shortest_first=float(policy.shortest_first),
        aging=float(policy.aging),
        charge=float(policy.charge),
        margin=float(policy.margin),
        fetch=float(policy.fetch),
        foresight=float(policy.foresight),
        forecast=float(policy.forecast),
        patience=float(policy.patience),
        hurry=float(policy.hurry),
        fair=float(policy.fair),
        crowding=float(policy.crowding),
        latency=cluster.fabric.latency_seconds + FETCH_SECONDS,
    )


def _fleet(cluster: Cluster, seed: int) -> tuple[fleets.Fleet, sim_world.Records]:
    """All engines as routers know them by now, from which they go on learning."""
    count = sum(pool.engines for pool in cluster.pools)
    learned = truth.learned(cluster.shape, cluster.pools, seed)
    fleet, begin = fleets.empty(count, count), 0
    fits = np.zeros((count, 2), fitting.FIT)
    fleet.engines["host"] = fleet.engines["tie"] = np.arange(count)
    for pool in cluster.pools:
        some = fleet.engines[begin : begin + pool.engines]
        some["prefills"] = pool.prefills
        some["decodes"] = pool.decodes
        some["switches"] = pool.elastic
        some["room"] = kv_room(cluster.shape, pool.gpu, pool.tensor_parallel)
        begin += pool.engines
    for engine, both, known in zip(fleet.engines, fits, learned, strict=True):
        for fit, name in zip(both, ("prefill", "decode"), strict=True):
            cost = known.prefill if name == "prefill" else known.decode
            engine[f"{name}_a"], engine[f"{name}_b"], engine[f"{name}_c"] = cost.a, cost.b, cost.c
            fitting.begin(fit, (cost.a, cost.b, cost.c), KEEP)
    fleet.hosts["link_seconds"] = 1 / cluster.fabric.bytes_per_second
    if cluster.ssd_bytes:
        fleet.hosts["ssd_seconds"] = 1 / cluster.ssd_bytes_per_second
    return fleet, fits


def _unbiased(engines: int) -> sim_world.Records:
    biases = np.zeros(engines, fitting.BIAS)
    fitting.unbiased(biases, BIAS_KEEP)
    return biases


def _placed(cluster: Cluster, fleet: fleets.Fleet) -> fleets.Fleet:
    """The same engines on hosts that stand in racks and domains."""
    turns = np.concatenate([np.arange(pool.engines) for pool in cluster.pools])
    hosts, near = fleet.hosts.copy(), np.zeros(cluster.domains + cluster.racks, np.int32)
    if cluster.domains:
        hosts["domain"] = turns % cluster.domains
        hosts["domain_seconds"] = 1 / cluster.nvlink_bytes_per_second
    if cluster.racks:
        hosts["rack"] = cluster.domains + turns % cluster.racks
    if cluster.cross_rack_bytes_per_second:
        hosts["far_seconds"] = 1 / cluster.cross_rack_bytes_per_second
    return fleets.Fleet(fleet.engines, fleet.lines, hosts, near)


def _requests(load: Load, seed: int, doubt: Doubt) -> sim_world.Records:
    dice, count = np.random.default_rng((seed, 2)), len(load)
    found = np.zeros(count, sim_world.REQUEST)
    found["arrival"] = load.arrival
    found["tokens"], found["output"] = load.input_tokens, load.output_tokens
    if load.client is not None:
        found["client"] = load.client
    found["factor"] = 1 + doubt.bias + doubt.error * dice.uniform(-1, 1, count)
    found["fate"] = np.exp(doubt.noise * dice.standard_normal(count))
    moments = ("due", "began", "prefilled", "first_token", "let_in", "finished", "expected")
    for moment in moments:
        found[moment] = np.nan
    return found


def check(world: World) -> None:
    """After a run everybody's end is known and nothing is left anywhere, else InvariantError."""
    status = world.requests["status"]
    wrong = np.flatnonzero((status <= sim_world.WAITING) | (status > sim_world.LOST))
    if len(wrong):
        raise InvariantError(f"request {wrong[0]} has not ended")
    served = world.requests[status == sim_world.SERVED]
    ordered = (served["arrival"] <= served["began"]) & (served["began"] < served["prefilled"])
    ordered &= (served["prefilled"] <= served["first_token"]) | (served["made"] > 0)
    ordered &= served["first_token"] <= served["finished"]
    marked = world.fleet.hosts[fleets.MARKED].copy()
    mark_roles(world.fleet)
    left = {
        "something happens in another order": ~ordered,
        "seconds wait": world.fleet.lines["ahead"],
        "prompts wait": world.fleet.lines["waiting"],
        "a queue has a head": world.heads != NONE,
        "a prompt is prefilled": world.engines["current"] != NONE,
        "a sequence is decoded": world.engines["batch"],
        "an engine is to switch": world.engines["turns"],
        "a sequence is let in": world.engines["line"] != NONE,
        "sequences are owed": world.engines["owed_batch"],
        "a router counts sequences": world.fleet.engines["batch"],
        "a router counts prompts": world.tally.engines["queued"],
        "events are to come": world.heap.counts[:1],
        "hosts do not know their engines": marked != world.fleet.hosts[fleets.MARKED],
    }
    caches, most = world.caches, world.caches.most
    left["blocks are coming"] = caches.sizes[:, sim_known.COMING]
    left["a cache is over its capacity"] = caches.sizes[:, : most.shape[1]] > most
    for story, column in left.items():
        if np.any(column):
            raise InvariantError(f"after the last event {story}: {np.argwhere(column)[0]}")
