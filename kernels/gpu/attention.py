"""Attention of new tokens over paged KV on a GPU: decode, and prefill behind a prefix.

K and V come from the pages alone, those of the new tokens too: a prefix loaded from the pool and
one computed here give the same result. Where few rows see much (decode), positions are cut in parts
that run side by side and are joined (Flash-Decoding, Dao et al., 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def attend(
    q: torch.Tensor, layer: torch.Tensor, block_tables: torch.Tensor, spans: Sequence[Span]
) -> torch.Tensor:
    """Causal softmax(q k / sqrt(head_dim)) v of each span's tokens, the shape and dtype of q.

    q: (tokens, heads, head_dim), contiguous. layer: (pages, kv_heads, page_tokens, 2, head_dim), of
    any strides but the last, which is 1; K at 0 and V at 1 of axis 3. block_tables: (spans, most
    pages) int32, on the same device; what lies behind a span's last page may be anything.
    Raises `ValueError` where shapes do not fit each other; page numbers are the caller's word.
    """
    _check(q, layer, block_tables, spans)
    out = torch.empty_like(q)
    if not q.numel():
        return out
    _, heads, dim = q.shape
    _, kv_heads, page_tokens, _, _ = layer.shape
    group = heads // kv_heads
    longest = max(span.tokens for span in spans)
    rows = min(ROWS_MAX, max(ROWS_MIN, triton.next_power_of_2(longest * group)))
    firsts = [0]
    for span in spans:
        firsts.append(firsts[-1] + span.tokens)
    tiles = [
        (index, first)
        for index, span in enumerate(spans)
        for first in range(0, span.tokens * group, rows)
    ]
    told = torch.tensor(tiles, dtype=torch.int32).to(q.device)
    facts = [(first, one.tokens, one.prefix) for first, one in zip(firsts, spans, strict=False)]
    about = torch.tensor(facts, dtype=torch.int32).to(q.device)
    wide = max(16, triton.next_power_of_2(dim))
    steps = (layer.stride(0), layer.stride(1), layer.stride(2), layer.stride(3), dim**-0.5)
    where = (block_tables, told, about, q.stride(0))
    shape = {"DIM": dim, "WIDE": wide, "GROUP": group, "ROWS": rows}
    pages = {"PAGE_TOKENS": page_tokens, "POSITIONS": POSITIONS}
    end = max(span.prefix + span.tokens for span in spans)
    parts = _parts(len(tiles) * kv_heads, end)
    table_step = block_tables.stride(0)
    if parts == 1:
        attend_rows[(len(tiles), kv_heads)](
            q, layer, out, *where, table_step, *steps, **shape, **pages
        )
        return out
    sums = torch.empty(
        (len(tiles), kv_heads, parts, rows, wide + 2), dtype=torch.float32, device=q.device
    )
    part_tokens = triton.cdiv(triton.cdiv(end, parts), POSITIONS) * POSITIONS
    attend_part[(len(tiles), kv_heads, parts)](
        q, layer, sums, *where, table_step, *steps, part_tokens, **shape, **pages
    )
    join_parts[(len(tiles), kv_heads)](sums, out, told, about, q.stride(0), parts, **shape)
    return out


def _parts(programs: int, positions: int) -> int:
    """In how many parts positions are looked at, so that there are programs enough."""
    return max(1, min(triton.cdiv(positions, PART_TOKENS), triton.cdiv(PROGRAMS, programs)))


def _check(
    q: torch.Tensor, layer: torch.Tensor, block_tables: torch.Tensor, spans: Sequence[Span]
) -> None:
    if q.ndim != 3 or not q.is_contiguous():
        raise ValueError(f"q is {tuple(q.shape)}; it must be (tokens, heads, head_dim), contiguous")
    tokens, heads, dim = q.shape
    if layer.ndim != 5 or layer.shape[3:] != (2, dim) or layer.stride(4) != 1:
        raise ValueError(
            f"layer is {tuple(layer.shape)}; it must be (pages, kv_heads, page_tokens, 2, {dim})"
        )
    _, kv_heads, page_tokens, _, _ = layer.shape
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are no multiple of {kv_heads} KV heads")
    if layer.dtype != q.dtype:
        raise ValueError(f"q is {q.dtype} and layer {layer.dtype}; they must be alike")
    if tokens != sum(span.tokens for span in spans):
        said = sum(span.tokens for span in spans)
        raise ValueError(f"q has {tokens} tokens; the spans have {said}")
    if (
        block_tables.dtype != torch.int32
        or block_tables.ndim != 2
        or len(block_tables) != len(spans)
    ):
        kind = f"{block_tables.dtype} of {tuple(block_tables.shape)}"
        raise ValueError(f"block_tables is {kind}; it must be int32, a row for each span")
    for index, span in enumerate(spans):
        room = block_tables.shape[1] * page_tokens
        if span.tokens < 1 or span.prefix < 0 or span.prefix + span.tokens > room:
            raise ValueError(f"spans[{index}] is {span}; its block table has {room} positions")
