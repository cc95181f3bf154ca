"""What the engines of a simulated cluster really take, and what a router has learned of it.

The truth is of another form than the routers' straight lines (`kvstore.kernels.engine_time`), its
numbers are off from the data sheet's, and every engine's are off from the others'. A router starts
from the data sheet as a conductor does and is told of some steps of each engine; nothing is copied
from the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvstore.core.cost import DecodeCost, Floats, PrefillCost
from kvstore.core.fit import DecodeFit, PrefillFit
from kvstore.core.hardware import SEEN
from kvstore.core.model_shape import ModelShape
from kvstore.core.priors import (
    BATCH_MET,
    REDUCES_A_LAYER,
    decode_prior,
    kv_room,
    prefill_prior,
    reduced,
    weights_read,
)
from kvstore.kernels import engine_time as columns
from kvstore.planner.cluster import Pool, Role

CHUNK_TOKENS = 8_192  # of a prompt at a time, as engines are mostly set
MIXED_CHUNK_TOKENS = 512  # where decoding waits behind each: larger ones would stall it
SMALL_TOKENS = 60.0  # at so many a product takes half as long again as it should
SEQUENCE_SECONDS = 30e-6  # of a step for each sequence: sampling, tables of pages
OFF_SHEET = 0.1  # each number of a kind of engine is off by at most this share
OFF_KIND = 0.04  # and each engine of that kind, in all alike
STEPS = 128  # of either kind that a router is told of, of each engine
_PROMPT_TOKENS = (32.0, 65_536.0)
_CONTEXT_TOKENS = (256.0, 16_384.0)  # of a sequence that is decoded


@dataclass(frozen=True, slots=True)
class Learned:
    """What a router thinks that an engine takes."""

    prefill: PrefillCost
    decode: DecodeCost


def rows(shape: ModelShape, pools: tuple[Pool, ...], seed: int) -> Floats:
    """For each engine, pool after pool, its row of `kvstore.kernels.engine_time`."""
    return _rows(shape, pools, seed).copy()


def learned(shape: ModelShape, pools: tuple[Pool, ...], seed: int) -> tuple[Learned, ...]:
    """For each engine, pool after pool, what is learned from its steps."""
    return _learned(shape, pools, seed)


# Searches ask for the same engines again and again.
@lru_cache(maxsize=64)
def _rows(shape: ModelShape, pools: tuple[Pool, ...], seed: int) -> Floats:
    dice = np.random.default_rng((seed, 0))
    found = []
    for pool in pools:
        kind, off = _row(shape, pool), np.ones(columns.COLUMNS)
        off[: columns.EXPERTS] = dice.uniform(1 - OFF_SHEET, 1 + OFF_SHEET, columns.EXPERTS)
        off[columns.EXPERTS] = off[columns.WEIGHTS]  # they are read from the same memory
        kind *= off
        each = kind * dice.uniform(1 - OFF_KIND, 1 + OFF_KIND, (pool.engines, 1))
        each[:, columns.SMALL], each[:, columns.TAKEN] = SMALL_TOKENS, kind[columns.TAKEN]
        usual = MIXED_CHUNK_TOKENS if pool.role is Role.MIXED else CHUNK_TOKENS
        each[:, columns.CHUNK] = pool.chunk_tokens or usual
        found.append(each)
    return np.concatenate(found)


def _row(shape: ModelShape, pool: Pool) -> Floats:
    gpu, degree = pool.gpu, pool.tensor_parallel
    prefill, decode = prefill_prior(shape, gpu, degree), decode_prior(shape, gpu, degree)
    launches = REDUCES_A_LAYER * shape.layers * SEEN.reduce_seconds if degree > 1 else 0.0
    row = np.zeros(columns.COLUMNS)
    row[columns.OVERHEAD] = SEEN.decode_seconds + launches
    row[columns.WEIGHTS] = decode.a - row[columns.OVERHEAD]
    row[columns.SEQUENCE] = SEQUENCE_SECONDS + decode.b
    if shape.experts:  # else what a sequence adds to a step is more experts that it reads
        row[columns.WEIGHTS], row[columns.EXPERTS] = weights_read(shape, gpu, degree)
        row[columns.TAKEN] = shape.experts_active / shape.experts
        row[columns.SEQUENCE] = SEQUENCE_SECONDS + reduced(shape, gpu, degree)
    row[columns.TOKEN] = prefill.b
    row[columns.SMALL] = SMALL_TOKENS
    row[columns.PAIR] = prefill.c
    row[columns.CONTEXT] = decode.c
    row[columns.CHUNK] = CHUNK_TOKENS
    return row


@lru_cache(maxsize=64)
def _learned(shape: ModelShape, pools: tuple[Pool, ...], seed: int) -> tuple[Learned, ...]:
    dice, times = np.random.default_rng((seed, 1)), _rows(shape, pools, seed).copy()
    kinds = [pool for pool in pools for _ in range(pool.engines)]
    return tuple(_told(shape, pool, times, engine, dice) for engine, pool in enumerate(kinds))


def _told(
    shape: ModelShape, pool: Pool, times: Floats, engine: int, dice: np.random.Generator
) -> Learned:
    gpu, degree = pool.gpu, pool.tensor_parallel
    prefill = PrefillFit(prefill_prior(shape, gpu, degree))
    decode = DecodeFit(decode_prior(shape, gpu, degree))
    room = kv_room(shape, gpu, degree)
    for _ in range(STEPS):
        new, prefix = np.rint(_log_uniform(_PROMPT_TOKENS, dice, 2))
        if dice.random() < 0.5:
            prefix = 0.0
        prefill.observe(new, prefix, columns.prefill_takes(times, engine, new, prefix))
        batch = float(np.rint(_log_uniform((1.0, 2.0 * BATCH_MET), dice, 1)[0]))
        context = min(room, batch * float(np.rint(_log_uniform(_CONTEXT_TOKENS, dice, 1)[0])))
        step = columns.step_seconds(times, engine, 0.0, 0.0, batch, context)
        decode.observe(batch, context, step)
    return Learned(prefill.cost, decode.cost)


def _log_uniform(ends: tuple[float, float], dice: np.random.Generator, count: int) -> Floats:
    low, high = np.log(ends).tolist()
    return np.asarray(np.exp(dice.uniform(low, high, count)))
