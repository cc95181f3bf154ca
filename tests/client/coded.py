"""Sequences of a coded namespace, and what must become of them, worked out by the reference."""

from __future__ import annotations

import numpy as np

from kvstore.client import KVGroup, KVSpec
from tests.kernels import codec_reference as reference


def coded_spec(
    model: str,
    codec: str,
    *,
    dtype: str = "bfloat16",
    layers: int = 3,
    kv_heads: int = 4,
    head_dim: int = 40,
    block_tokens: int = 24,
    parts: int = 2,
) -> KVSpec:
    group = KVGroup(tuple(range(layers)), kv_heads, head_dim, block_tokens, parts)
    return KVSpec(model, "r1", dtype, (group,), codec=codec)


def sequence(spec: KVSpec, tokens: int, seed: int) -> np.ndarray:
    """(layers, heads, tokens, parts, run bytes): numbers, now and then a loud one."""
    g, rng = spec.groups[0], np.random.default_rng(seed)
    shape = (len(g.layers), g.kv_heads, tokens, g.parts, g.head_dim)
    x = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.01, 20, 1)
    return reference.raw_of(x, spec.dtype)


def strips(spec: KVSpec, raw: np.ndarray) -> list[list[np.ndarray]]:
    """Of each block, its coded strips in slot order."""
    size, tokens = spec.groups[0].block_tokens, raw.shape[2]
    return [
        [
            reference.strip_of(head[first : first + size], spec.dtype, spec.codec)
            for layer in raw
            for head in layer
        ]
        for first in range(0, tokens, size)
    ]


def payloads(spec: KVSpec, raw: np.ndarray) -> list[bytes]:
    """Of each block, the bytes that Put and Get stream."""
    return [b"".join(strip.tobytes() for strip in block) for block in strips(spec, raw)]


def come_back(spec: KVSpec, raw: np.ndarray) -> np.ndarray:
    """What a reader is given of a sequence, as the engine keeps it."""
    g, found = spec.groups[0], np.empty_like(raw)
    for block, coded in enumerate(strips(spec, raw)):
        first = block * g.block_tokens
        some = slice(first, min(first + g.block_tokens, raw.shape[2]))
        for row, strip in enumerate(coded):
            layer, head = divmod(row, g.kv_heads)
            shape = (some.stop - some.start, g.parts, g.head_dim)
            numbers = reference.decoded(strip, shape, spec.dtype, spec.codec)
            found[layer, head, some] = reference.raw_of(numbers, spec.dtype)
    return found
