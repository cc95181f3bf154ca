"""KV whose every byte is known, and engines' caches of any layout to keep it in."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvstore.client import Client, KVGroup, KVSpec, Memory
from kvstore.spec import ITEM_BYTES

POISON = 0xA5


def spec_of(
    model: str,
    *,
    layers: int = 3,
    kv_heads: int = 4,
    head_dim: int = 16,
    block_tokens: int = 8,
    parts: int = 2,
    dtype: str = "float32",
) -> KVSpec:
    group = KVGroup(tuple(range(layers)), kv_heads, head_dim, block_tokens, parts)
    return KVSpec(model, "r1", dtype, (group,))


def truth_of(spec: KVSpec, tokens: int, seed: int) -> np.ndarray:
    """(layers, heads, tokens, parts, run bytes) of a sequence: any bytes, not only fine floats."""
    g = spec.groups[0]
    shape = (len(g.layers), g.kv_heads, tokens, g.parts, spec.run_bytes(0))
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Cache:
    """One engine's cache: a tensor a layer, axes in any order, pages in a shuffled table."""

    def __init__(
        self,
        spec: KVSpec,
        tokens: int,
        *,
        axes: str = "phtkd",
        page_tokens: int = 16,
        kind: str = "numpy",
        seed: int = 0,
        heads: tuple[int, int] | None = None,  # first and count, of the block's
        layers: tuple[int, int] | None = None,
    ) -> None:
        g = spec.groups[0]
        self.axes, self.tokens = axes, tokens
        self.head_first, head_count = heads or (0, g.kv_heads)
        self.layer_first, layer_count = layers or (0, len(g.layers))
        self._layers = slice(self.layer_first, self.layer_first + layer_count)
        self._heads = slice(self.head_first, self.head_first + head_count)
        page_count = -(-tokens // page_tokens) + 3
        size = {
            "p": page_count,
            "h": head_count,
            "t": page_tokens if "p" in axes else tokens + 5,
            "k": g.parts,
            "d": spec.run_bytes(0),
        }
        shape = [size[axis] for axis in axes]
        self._raw = [np.full(shape, POISON, np.uint8) for _ in range(layer_count)]
        self.tensors = [_typed(raw, spec.dtype, kind) for raw in self._raw]
        table = np.random.default_rng(seed).permutation(page_count)[: -(-tokens // page_tokens)]
        self.block_table = table if "p" in axes else None
        positions = np.arange(tokens)
        if "p" in axes:
            self._pages, self._rows = table[positions // page_tokens], positions % page_tokens
        else:
            self._pages, self._rows = np.zeros(tokens, np.int64), positions

    def memory(self, client: Client) -> Memory:
        """As an engine that holds all layers describes it; a rank's layers go by `put_layer`."""
        return client.memory(
            self.tensors, self.axes, self.block_table, self.head_first, self.layer_first
        )

    def fill(self, truth: np.ndarray) -> None:
        for raw, layer in zip(self._raw, truth[self._layers], strict=True):
            known = layer[self._heads, : self.tokens].transpose(1, 0, 2, 3)
            self._canonical(raw)[self._pages, self._rows] = known

    def holds(self, truth: np.ndarray, first: int = 0, last: int | None = None) -> bool:
        """Whether tokens [first, last) are those of the truth."""
        wanted = slice(first, self.tokens if last is None else last)
        return all(
            np.array_equal(
                self._canonical(raw)[self._pages[wanted], self._rows[wanted]],
                layer[self._heads, wanted].transpose(1, 0, 2, 3),
            )
            for raw, layer in zip(self._raw, truth[self._layers], strict=True)
        )

    def untouched(self, first: int = 0, last: int = 0) -> bool:
        """Whether every byte outside tokens [first, last) is as it was made."""
        for raw in self._raw:
            left = raw.copy()
            self._canonical(left)[self._pages[first:last], self._rows[first:last]] = POISON
            if (left != POISON).any():
                return False
        return True

    def _canonical(self, raw: np.ndarray) -> np.ndarray:
        """A view as (page, token, head, part, bytes)."""
        order = [self.axes.index(axis) for axis in "pthkd" if axis in self.axes]
        view = raw.transpose(order)
        if "p" not in self.axes:
            view = view[None]
        return view if "k" in self.axes else view[:, :, :, None]


def _typed(raw: np.ndarray, dtype: str, kind: str) -> Any:
    if kind == "torch":
        import torch  # here, as it takes a second that the other processes need not

        return torch.from_numpy(raw).view(getattr(torch, dtype))
    assert np.dtype(dtype).itemsize == ITEM_BYTES[dtype]
    return raw.view(dtype)
