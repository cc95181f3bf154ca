"""What the planner's simulator says of a load on engines whose costs were measured.

The planner draws engines from a data sheet. Here these stand in for what was measured, put where
the simulator reads them: a step is a straight line then, as routers think of it. Links are as
engines tell conductors of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.chats import Coming
from bench.engine import Shape as Model
from bench.fleet import Fleet
from bench.listening import Costs
from kvstore.core.hardware import H100, Fabric
from kvstore.core.model_shape import ModelShape
from kvstore.engine.core import EngineSettings
from kvstore.engine.daemon import LINK_BYTES_PER_SECOND
from kvstore.kernels import engine_time as columns
from kvstore.kernels import fitting, sim_world, simulation
from kvstore.kernels.sim_world import World
from kvstore.planner import lineage, replay, world
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.policies import OURS

LATENCY_SECONDS = 1e-3
ITEM_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Foretold:
    """Of each request of a load, in the order in which they come."""

    tokens: NDArray[np.float64]
    reused: NDArray[np.float64]  # of those, not computed
    ttft: NDArray[np.float64]  # seconds; NaN where it was not served

    def hit_share(self, some: slice = slice(None)) -> float:
        served = np.isfinite(self.ttft[some])
        return float(self.reused[some][served].sum() / self.tokens[some][served].sum())

    def ttft_seconds(self, some: slice = slice(None)) -> float:
        """Mean."""
        return float(np.nanmean(self.ttft[some]))


def foretell(
    fleet: Fleet, model: Model, vocabulary: int, dram_bytes: int, coming: Sequence[Coming],
    costs: Costs,
) -> Foretold:  # fmt: skip
    """All of the load is run, by our policy."""
    shape = ModelShape(
        *("bench", model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim),
        *(model.intermediate, vocabulary),
        parameter_bytes=ITEM_BYTES,
        kv_item_bytes=ITEM_BYTES,
    )
    pools = (
        Pool(Role.PREFILL, fleet.plan.prefills, H100),
        Pool(Role.DECODE, fleet.plan.decodes, H100),
    )
    fabric = Fabric("as told", LINK_BYTES_PER_SECOND, LATENCY_SECONDS)
    cluster = Cluster(shape, pools, fabric, dram_bytes, decode_dram_bytes=dram_bytes)
    load = _load(coming, fleet.spec.groups[0].block_tokens)
    built = world.build(load, cluster, OURS, 0, replay.SURE)
    _measured(built, costs, fleet)
    simulation.run(built)
    every = built.requests
    reused = np.minimum(every["reused"] * load.block_tokens, every["tokens"] - 1)
    served = every["status"] == sim_world.SERVED
    ttft = np.where(served, every["first_token"] - every["arrival"], np.nan)
    return Foretold(every["tokens"].copy(), reused, ttft)


def _measured(built: World, costs: Costs, fleet: Fleet) -> None:
    """Engines take what was measured, and routers know it."""
    prefill, decode = costs.prefill, costs.decode
    built.times[:] = 0.0
    built.times[:, columns.CHUNK] = EngineSettings().max_batch_tokens
    for row, engine, fits in zip(built.times, built.fleet.engines, built.fits, strict=True):
        for fit, cost in zip(fits, (prefill, decode), strict=True):
            fitting.begin(fit, (cost.a, cost.b, cost.c), world.KEEP)
        engine["prefill_a"], engine["prefill_b"], engine["prefill_c"] = (
            prefill.a, prefill.b, prefill.c,
        )  # fmt: skip
        engine["decode_a"], engine["decode_b"], engine["decode_c"] = decode.a, decode.b, decode.c
        engine["room"] = fleet.plan.pages * EngineSettings().page_tokens
        if engine["prefills"]:
            # The simulator rounds tokens up to tiles, which a CPU does not: half a tile on average.
            row[columns.OVERHEAD] = max(0.0, prefill.a - prefill.b * columns.TILE / 2)
            row[columns.TOKEN], row[columns.PAIR] = prefill.b, prefill.c
        else:
            row[columns.OVERHEAD] = decode.a
            row[columns.SEQUENCE], row[columns.CONTEXT] = decode.b, decode.c


def _load(coming: Sequence[Coming], block_tokens: int) -> Load:
    ids: dict[tuple[int, ...], int] = {}
    blocks: list[int] = []
    first = [0]
    for one in coming:
        prompt = one.request.prompt
        for end in range(block_tokens, len(prompt) + block_tokens, block_tokens):
            blocks.append(ids.setdefault(prompt[:end], len(ids)))
        first.append(len(blocks))
    return Load(
        block_tokens,
        np.array([one.at for one in coming]),
        np.array([len(one.request.prompt) for one in coming], np.int32),
        np.array([one.request.max_new_tokens for one in coming], np.int32),
        lineage.by_appearance(np.array(blocks, np.int64)),
        np.array(first, np.int64),
    )
