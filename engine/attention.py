"""Attention of each span over its own pages: causal, and blind to who wrote the pages. In torch.

It reads K and V only from the cache, never from the step's activations, so a prefix loaded from
the pool and one computed here give the same result.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as functional

from .batch import Batch, Span
from .cache import K, PagedKV, V
from .config import ModelConfig


class Attend(Protocol):
    """One batch's attention, the same call for every layer."""

    def __call__(self, layer: int, q: torch.Tensor, cache: PagedKV) -> torch.Tensor:
        """q (tokens, heads, head_dim) to its attention over layer's pages, the same shape."""


class Attention:
    """One batch's attention. Made once a step: masks and contexts serve every layer."""

    def __init__(self, batch: Batch, config: ModelConfig) -> None:
        place, dtype = batch.tokens.device, getattr(torch, config.dtype)
        self._batch = batch
        self._masks = [_mask(span, dtype, place) for span in batch.spans]
        # The pages of each span's whole context.
        self._contexts = [
            torch.from_numpy(span.pages[: -(-span.end // batch.page_tokens)].astype(np.int64)).to(
                place
            )
            for span in batch.spans
        ]

    def __call__(self, layer: int, q: torch.Tensor, cache: PagedKV) -> torch.Tensor:
        """q (tokens, heads, head_dim) to its attention over layer's pages, the same shape."""
        out = torch.empty_like(q)
        for index, span in enumerate(self._batch.spans):
            rows = self._batch.rows[index]
            kv = cache.gather(layer, self._contexts[index])[:, None, :, : span.end]
            out[rows] = _attend(q[rows], kv[K], kv[V], self._masks[index], span.start)
        return out


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, prefix: int
) -> torch.Tensor:
    """q (tokens, heads, head_dim) over k and v (1, kv_heads, context, head_dim)."""
    tokens, heads, head_dim = q.shape
    if tokens == 1:
        # Decode: the query heads of one KV head go in as its rows. No mask, and no copy of K or V.
        packed = q.reshape(1, k.shape[1], heads // k.shape[1], head_dim)
        one = functional.scaled_dot_product_attention(packed, k, v)
        return one.reshape(1, heads, head_dim)
    many = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=mask, is_causal=prefix == 0, enable_gqa=True
    )
    return many[0].transpose(0, 1)


def _mask(span: Span, dtype: torch.dtype, place: torch.device) -> torch.Tensor | None:
    """0 where a token may look and -inf where not, (tokens, context); None where none is needed."""
    tokens = len(span.tokens)
    if tokens == 1 or span.start == 0:
        return None
    # Additive, not boolean: the CPU kernel would turn a boolean one into this in every layer.
    mask = torch.full((tokens, span.end), -torch.inf, dtype=dtype, device=place)
    return mask.triu_(span.start + 1)
