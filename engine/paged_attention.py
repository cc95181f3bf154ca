"""Attention that reads K and V where they lie in pages, by the kernels of a GPU.

The same promise as `attention.Attention`, and no copy of what the pages hold.
"""

from __future__ import annotations

import numpy as np
import torch

from kvstore.kernels.gpu.attention import Heads, Span, Step
from kvstore.kernels.gpu.fetch import fetched as fetched  # for `device`: this file knows kernels
from kvstore.kernels.gpu.upload import sent as sent

from .batch import Batch
from .cache import PagedKV
from .config import ModelConfig
from .decode_inputs import DecodeRows


class PagedAttention:
    """One batch's attention. Made once a step: the device is told of it once, for all layers."""

    def __init__(self, batch: Batch, config: ModelConfig) -> None:
        needed = [-(-span.end // batch.page_tokens) for span in batch.spans]
        tables = np.zeros((len(needed), max(needed)), np.int32)
        for row, count, span in zip(tables, needed, batch.spans, strict=True):
            row[:count] = span.pages[:count]
        spans = [Span(len(one.tokens), one.start) for one in batch.spans]
        there = sent(tables, batch.tokens.device)
        self._step = Step.of(spans, there, batch.page_tokens, _heads(config))

    def __call__(self, layer: int, q: torch.Tensor, cache: PagedKV) -> torch.Tensor:
        """q (tokens, heads, head_dim) to its attention over layer's pages, the same shape."""
        return self._step.attend(q.contiguous(), cache.layers[layer])


class StandingAttention:
    """Of the rows of a decode step, whoever is in them by then. Made once: each call reads what
    they hold, and brings nothing to the device."""

    def __init__(self, rows: DecodeRows, config: ModelConfig) -> None:
        self._step = Step.kept(
            rows.facts, rows.block_tables, rows.page_tokens, _heads(config), rows.positions_max
        )

    def __call__(self, layer: int, q: torch.Tensor, cache: PagedKV) -> torch.Tensor:
        """As of `PagedAttention`; what it gives for rows of nobody is undefined."""
        return self._step.attend(q.contiguous(), cache.layers[layer])


def _heads(config: ModelConfig) -> Heads:
    return Heads(config.heads, config.kv_heads, config.head_dim)
