"""Attention of new tokens over paged KV on a GPU: decode, and prefill behind a prefix.

K and V come from the pages alone, those of the new tokens too: a prefix loaded from the pool and
one computed here give the same result. Where few rows see much (decode), positions are cut in parts
that run side by side and are joined (Flash-Decoding, Dao et al., 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton

from .attention_programs import attend_part, attend_rows, join_parts

ROWS_MIN, ROWS_MAX, POSITIONS = 16, 64, 64
PART_TOKENS = 512  # at least, that a part of a decode's positions has
PROGRAMS = 512  # with fewer than these the processors of a GPU are not all at work


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence, next to each other in q, behind `prefix` tokens of its pages."""

    tokens: int
    prefix: int

    @property
    def end(self) -> int:
        return self.prefix + self.tokens


@dataclass(frozen=True, slots=True)
class Heads:
    """Of one layer, alike in all: query heads, KV heads, and numbers of a head."""

    queries: int
    kv: int
    dim: int

    def __post_init__(self) -> None:
        if self.queries % self.kv:
            raise ValueError(f"{self.queries} query heads are no multiple of {self.kv} KV heads")

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.queries // self.kv


class Step:
    """What the tokens of one step see. The device is told of it once, for all layers."""

    def __init__(
        self, spans: Sequence[Span], block_tables: torch.Tensor, page_tokens: int, heads: Heads
    ) -> None:
        """block_tables: (spans, most pages) int32, on the device; what lies behind a span's last
        page may be anything. Raises `ValueError` where a span's tokens have no room in its pages;
        page numbers are the caller's word."""
        _check_spans(spans, block_tables, page_tokens)
        self._heads, self._page_tokens, self._tables = heads, page_tokens, block_tables.contiguous()
        sizes = np.array([(one.tokens, one.prefix) for one in spans], np.int32).reshape(-1, 2)
        self._tokens = int(sizes[:, 0].sum())
        longest = int(sizes[:, 0].max(initial=1))
        rows = triton.next_power_of_2(longest * heads.group)
        self._rows = min(ROWS_MAX, max(ROWS_MIN, rows))
        each = -(-sizes[:, 0] * heads.group // self._rows)
        of_span = np.repeat(np.arange(len(spans), dtype=np.int32), each)
        nth = np.arange(len(of_span), dtype=np.int32) - np.repeat(np.cumsum(each) - each, each)
        firsts = np.cumsum(sizes[:, 0]) - sizes[:, 0]
        # In one piece: each that is sent takes as long as all together.
        tiles = np.stack([of_span, nth * self._rows], 1)
        facts = np.concatenate([firsts[:, None], sizes], 1)
        both = np.concatenate([tiles.ravel(), facts.ravel()]).astype(np.int32)
        sent = torch.from_numpy(both).to(block_tables.device)
        self._tiles, self._facts = sent[: tiles.size], sent[tiles.size :]
        self._count, self._end = len(tiles), max((one.end for one in spans), default=0)
        self._parts = _parts(self._count * heads.kv, self._end)

    def attend(self, q: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
        """Causal softmax(q k / sqrt(dim)) v of each span's tokens, the shape and dtype of q.

        q: (tokens, query heads, dim), contiguous. layer: (pages, KV heads, page_tokens, 2, dim), of
        any strides but the last, which is 1; K at 0 and V at 1 of axis 3. Both on the device.
        Stream-ordered. Raises `ValueError` where shapes do not fit.
        """
        self._check(q, layer)
        out = torch.empty_like(q)
        if not q.numel():
            return out
        heads, rows = self._heads, self._rows
        wide = max(16, triton.next_power_of_2(heads.dim))
        steps = (*layer.stride()[:4], heads.dim**-0.5)
        tables, told, about = self._tables, self._tiles, self._facts
        where = (tables, told, about, q.stride(0), tables.stride(0))
        shape = {"DIM": heads.dim, "WIDE": wide, "GROUP": heads.group, "ROWS": rows}
        pages = {"PAGE_TOKENS": self._page_tokens, "POSITIONS": POSITIONS}
        grid = (self._count, heads.kv)
        if self._parts == 1:
            attend_rows[grid](q, layer, out, *where, *steps, **shape, **pages)
            return out
        room = (*grid, self._parts, rows, wide + 2)
        sums = torch.empty(room, dtype=torch.float32, device=q.device)
        part = triton.cdiv(triton.cdiv(self._end, self._parts), POSITIONS) * POSITIONS
        attend_part[(*grid, self._parts)](q, layer, sums, *where, *steps, part, **shape, **pages)
        join_parts[grid](sums, out, told, about, q.stride(0), self._parts, **shape)
        return out

    def _check(self, q: torch.Tensor, layer: torch.Tensor) -> None:
        heads = self._heads
        if q.shape != (self._tokens, heads.queries, heads.dim) or not q.is_contiguous():
            wanted = f"({self._tokens}, {heads.queries}, {heads.dim}), contiguous"
            raise ValueError(f"q is {tuple(q.shape)}; it must be {wanted}")
        wanted_layer = (heads.kv, self._page_tokens, 2, heads.dim)
        if layer.ndim != 5 or layer.shape[1:] != wanted_layer or layer.stride(4) != 1:
            raise ValueError(f"layer is {tuple(layer.shape)}; it must be (pages, *{wanted_layer})")
        if layer.dtype != q.dtype:
            raise ValueError(f"q is {q.dtype} and layer {layer.dtype}; they must be alike")


def _parts(programs: int, positions: int) -> int:
    """In how many parts positions are looked at, so that there are programs enough."""
    return max(1, min(triton.cdiv(positions, PART_TOKENS), triton.cdiv(PROGRAMS, max(1, programs))))


def _check_spans(spans: Sequence[Span], block_tables: torch.Tensor, page_tokens: int) -> None:
    if (
        block_tables.dtype != torch.int32
        or block_tables.ndim != 2
        or len(block_tables) != len(spans)
    ):
        kind = f"{block_tables.dtype} of {tuple(block_tables.shape)}"
        raise ValueError(f"block_tables is {kind}; it must be int32, a row for each span")
    room = block_tables.shape[1] * page_tokens
    for index, span in enumerate(spans):
        if span.tokens < 1 or span.prefix < 0 or span.end > room:
            raise ValueError(f"spans[{index}] is {span}; its block table has {room} positions")
