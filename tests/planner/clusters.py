"""Small clusters, and loads of which the answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvstore.planner import presets, spans
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.policies import Policy

A100 = presets.CARDS["a100"]
PLAIN = Policy("plain", "round-robin", fetch=0.0)  # each engine's queue is as it comes


def cluster(prefill: int = 1, decode: int = 1, **changes: Any) -> Cluster:
    """Engines of a small model on one GPU each; nothing is kept, and no target is ever missed."""
    pools = (Pool(Role.PREFILL, prefill, A100), Pool(Role.DECODE, decode, A100))
    plain = Cluster(
        presets.MODELS["llama-3-8b"],
        pools,
        presets.LINKS["rdma-200"],
        dram_bytes=0,
        ttft_seconds=80_000,
        tpot_seconds=100,
    )
    return replace(plain, **changes)


def apart(arrival: Any, tokens: Any, output: int = 2, block_tokens: int = 512) -> Load:
    """Prompts that share nothing."""
    lengths = np.asarray(tokens, np.int32)
    first = spans.offsets(-(-lengths.astype(np.int64) // block_tokens))
    times = np.asarray(arrival, np.float64)
    answers = np.full(len(lengths), output, np.int32)
    return Load(block_tokens, times - times[0], lengths, answers, np.arange(first[-1]), first)


def same(count: int, gap_s: float, tokens: int, block_tokens: int = 512, output: int = 2) -> Load:
    """One prompt again and again."""
    blocks = -(-tokens // block_tokens)
    return Load(
        block_tokens,
        np.arange(count) * gap_s,
        np.full(count, tokens, np.int32),
        np.full(count, output, np.int32),
        np.tile(np.arange(blocks), count),
        np.arange(count + 1) * blocks,
    )
