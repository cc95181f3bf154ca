"""What routers learn comes near the truth and is not it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvstore.core.hardware import H200, SEEN
from kvstore.core.model_shape import DEEPSEEK_V3, ModelShape
from kvstore.core.priors import prefill_prior
from kvstore.kernels import engine_time
from kvstore.planner import truth
from kvstore.planner.cluster import Pool
from tests.planner.clusters import A100, cluster


def engines(prefill: int, decode: int) -> tuple[ModelShape, tuple[Pool, ...]]:
    one = cluster(prefill, decode)
    return one.shape, one.pools


def test_engines_differ_by_some_percent_and_kinds_from_their_sheet() -> None:
    rows = truth.rows(*engines(50, 50), 1)
    assert rows.shape == (100, engine_time.COLUMNS)
    token = rows[:50, engine_time.TOKEN]
    assert 1 < token.max() / token.min() < (1 + truth.OFF_KIND) / (1 - truth.OFF_KIND)
    sheet = prefill_prior(cluster().shape, A100).b
    assert token.mean() == pytest.approx(sheet, rel=truth.OFF_SHEET * 1.1)
    assert token.mean() != pytest.approx(sheet, rel=1e-3)
    assert (rows[:, engine_time.CHUNK] == truth.CHUNK_TOKENS).all()


def test_the_same_seed_makes_the_same_truth() -> None:
    assert (truth.rows(*engines(1, 1), 3) == truth.rows(*engines(1, 1), 3)).all()
    assert (truth.rows(*engines(1, 1), 3) != truth.rows(*engines(1, 1), 4)).any()


@pytest.mark.parametrize("seed", range(5))
def test_a_router_is_right_within_some_percent_and_nowhere_exactly(seed: int) -> None:
    rows = truth.rows(*engines(4, 4), seed)
    for engine, known in enumerate(truth.learned(*engines(4, 4), seed)):
        off = []
        for new, prefix in [(200, 0), (1_000, 0), (4_000, 8_000), (20_000, 0), (30_000, 30_000)]:
            took = engine_time.prefill_takes(rows, engine, float(new), float(prefix))
            off.append(known.prefill.seconds(new, prefix) / took - 1)
        for batch, context in [(1, 1_000), (32, 64_000), (200, 200_000)]:
            step = engine_time.step_seconds(rows, engine, 0.0, 0.0, float(batch), float(context))
            off.append(known.decode.seconds(batch, context) / step - 1)
        assert np.abs(off).max() < 0.35 and np.abs(off).mean() < 0.12
        assert np.abs(off).min() > 0


def test_few_tokens_read_few_experts_and_a_chunk_nearly_all_of_them() -> None:
    pools = tuple(
        dataclasses.replace(pool, gpu=H200, tensor_parallel=16) for pool in engines(1, 1)[1]
    )
    rows = truth.rows(DEEPSEEK_V3, pools, 1)
    seconds = 16 * H200.memory_bytes_per_second * SEEN.memory

    def products(new: int, batch: int) -> float:
        took = float(engine_time.step_seconds(rows, 0, float(new), 0.0, float(batch), 0.0))
        row = rows[0]
        rest = row[engine_time.PAIR] * new * new + row[engine_time.SEQUENCE] * batch
        return took - float(row[engine_time.OVERHEAD] + rest)

    off = (1 + truth.OFF_SHEET) * (1 + truth.OFF_KIND) - 1
    for batch in (1, 8, 64):
        reads = DEEPSEEK_V3.decode_bytes(batch, 0) / seconds
        assert products(0, batch) == pytest.approx(reads, rel=off)
    whole = (DEEPSEEK_V3.weight_bytes - 129_280 * 7_168) / seconds  # all but the embedding
    assert products(256, 0) == pytest.approx(whole, rel=off)
    assert products(256, 0) > 9 * products(0, 1)
