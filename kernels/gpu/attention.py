"""Attention of new tokens over paged KV on a GPU: decode, and prefill behind a prefix.

K and V come from the pages alone, those of the new tokens too: a prefix loaded from the pool and
one computed here give the same result. Where few rows see much (decode), positions are cut in parts
that run side by side and are joined (Flash-Decoding, Dao et al., 2023). How long sequences are the
programs read from the device, so that a decode step may be recorded, and run again for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from .attention_programs import attend_part, attend_rows, join_parts
from .launch import Launch, attention_shape
from .tuned import attention_of, launch_of, processors
from .upload import sent

ROWS_MIN, ROWS_MAX = 16, 64
ROWS_NUMBERS_MAX = 64 * 128  # of a program's queries: their sums are to stay in registers
PART_TOKENS = 512  # at least, that a part of a decode's positions has
EACH = 2  # programs of a GPU's processor: with fewer some have no work, more parts join for longer


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

    @property
    def wide(self) -> int:
        """Numbers of a head, up to what a program has room for."""
        return max(16, triton.next_power_of_2(self.dim))

    @property
    def rows_max(self) -> int:
        """Of a program."""
        return max(ROWS_MIN, min(ROWS_MAX, ROWS_NUMBERS_MAX // self.wide))


@dataclass(frozen=True, slots=True)
class Step:
    """What the tokens of one step see. The device is told of it once, for all layers."""

    heads: Heads
    page_tokens: int
    tokens: int  # rows of q
    rows: int  # of a program: query heads of tokens
    parts: int  # in which positions are looked at
    tables: torch.Tensor  # int32 (spans, most pages), on the device as all that follows
    tiles: torch.Tensor  # int32 (programs, 2): a span, and which of its rows is the first
    facts: torch.Tensor  # int32 (spans, 3): see `kept`

    @classmethod
    def of(
        cls, spans: Sequence[Span], block_tables: torch.Tensor, page_tokens: int, heads: Heads
    ) -> Step:
        """block_tables: (spans, most pages) int32, on the device; what lies behind a span's last
        page may be anything. Raises `ValueError` where a span's tokens have no room in its pages;
        page numbers are the caller's word."""
        _check_tables(block_tables, len(spans))
        _check_spans(spans, block_tables.shape[1] * page_tokens)
        sizes = np.array([(one.tokens, one.prefix) for one in spans], np.int32).reshape(-1, 2)
        rows, tiles = _tiled(sizes[:, 0], heads)
        firsts = np.cumsum(sizes[:, 0]) - sizes[:, 0]
        facts = np.concatenate([firsts[:, None], sizes], 1)
        # In one piece: each that is sent takes as long as all together.
        both = np.concatenate([tiles.ravel(), facts.ravel()]).astype(np.int32)
        there = sent(both, block_tables.device)
        most = max((one.end for one in spans), default=0)
        parts = _parts(len(tiles) * heads.kv, most, processors(block_tables.device))
        return cls(
            heads, page_tokens, int(sizes[:, 0].sum()), rows, parts, block_tables.contiguous(),
            there[: tiles.size].view(-1, 2), there[tiles.size :].view(-1, 3),
        )  # fmt: skip

    @classmethod
    def kept(
        cls,
        facts: torch.Tensor,
        block_tables: torch.Tensor,
        page_tokens: int,
        heads: Heads,
        positions_max: int,
    ) -> Step:
        """One token of each span, of lengths that are read from the device at each `attend`.

        What is launched depends on how many spans there are, and on positions_max, which no length
        exceeds: so it may be recorded, and run again once `facts` and `block_tables` hold others.
        facts: (spans, 3) int32 on the device, of each span its row of q, its tokens (1, or 0: it
        sees nothing, and what is given for it is undefined) and its prefix; all are the caller's
        word. Both are contiguous. Raises `ValueError` where their shapes do not fit.
        """
        _check_tables(block_tables, len(facts))
        wanted = (len(block_tables), 3)
        if facts.dtype != torch.int32 or facts.shape != wanted or not facts.is_contiguous():
            kind = f"{facts.dtype} of {tuple(facts.shape)}"
            raise ValueError(f"facts is {kind}; it must be int32 of {wanted}, contiguous")
        if not block_tables.is_contiguous():
            raise ValueError("block_tables must be contiguous: a copy would not follow it")
        spans = len(facts)
        rows, tiles = _tiled(np.ones(spans, np.int32), heads)
        there = sent(tiles, facts.device)
        parts = _parts(len(tiles) * heads.kv, positions_max, processors(facts.device))
        return cls(heads, page_tokens, spans, rows, parts, block_tables, there, facts)

    def attend(self, q: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
        """Causal softmax(q k / sqrt(dim)) v of each span's tokens, the shape and dtype of q.

        q: (tokens, query heads, dim), contiguous. layer: (pages, KV heads, page_tokens, 2, dim), of
        any strides but the last, which is 1; K at 0 and V at 1 of axis 3. Both on the device.
        Stream-ordered; nothing is asked of the device or sent there. Raises `ValueError` where
        shapes do not fit, or heads are so wide that the device has no room for them.
        """
        size = q.element_size()
        launch = attention_of(q.device, size, self.heads.wide, self.rows, self.page_tokens)
        return self.attended(q, layer, launch, launch_of(q.device, "join_parts", self.shape(size)))

    def shape(self, item_bytes: int) -> str:
        """By which launches are looked up."""
        return attention_shape(item_bytes, self.heads.wide, self.rows, self.page_tokens)

    def attended(
        self, q: torch.Tensor, layer: torch.Tensor, launch: Launch, join: Launch
    ) -> torch.Tensor:
        """As `attend`, launched so; parts, where there are some, are joined by `join`."""
        self._check(q, layer)
        out = torch.empty_like(q)
        if not q.numel():
            return out
        heads, rows, wide = self.heads, self.rows, self.heads.wide
        steps = (*layer.stride()[:4], heads.dim**-0.5)
        tables, told, about = self.tables, self.tiles, self.facts
        where = (tables, told, about, q.stride(0), tables.stride(0))
        form = {"DIM": heads.dim, "WIDE": wide, "GROUP": heads.group, "ROWS": rows}
        form["POSITIONS"] = launch.block
        pages = {"PAGE_TOKENS": self.page_tokens}
        grid = (len(told), heads.kv)
        if self.parts == 1:
            attend_rows[grid](q, layer, out, *where, *steps, **form, **pages, **launch.how)
            return out
        room = (*grid, self.parts, rows, wide + 2)
        sums = torch.empty(room, dtype=torch.float32, device=q.device)
        form["PART"] = PART_TOKENS
        attend_part[(*grid, self.parts)](
            q, layer, sums, *where, *steps, **form, **pages, **launch.how
        )
        join_parts[grid](sums, out, told, about, q.stride(0), self.parts, **form, **join.how)
        return out

    def _check(self, q: torch.Tensor, layer: torch.Tensor) -> None:
        heads = self.heads
        if q.shape != (self.tokens, heads.queries, heads.dim) or not q.is_contiguous():
            wanted = f"({self.tokens}, {heads.queries}, {heads.dim}), contiguous"
            raise ValueError(f"q is {tuple(q.shape)}; it must be {wanted}")
        wanted_layer = (heads.kv, self.page_tokens, 2, heads.dim)
        if layer.ndim != 5 or layer.shape[1:] != wanted_layer or layer.stride(4) != 1:
            raise ValueError(f"layer is {tuple(layer.shape)}; it must be (pages, *{wanted_layer})")
        if layer.dtype != q.dtype:
            raise ValueError(f"q is {q.dtype} and layer {layer.dtype}; they must be alike")


def _tiled(tokens: NDArray[np.int32], heads: Heads) -> tuple[int, NDArray[np.int32]]:
    """Rows of a program, and which rows each has of spans of so many tokens: (programs, 2), a span
    and the first."""
    wanted = triton.next_power_of_2(int(tokens.max(initial=1)) * heads.group)
    rows = min(heads.rows_max, max(ROWS_MIN, wanted))
    each = -(-tokens * heads.group // rows)
    of_span = np.repeat(np.arange(len(tokens), dtype=np.int32), each)
    nth = np.arange(len(of_span), dtype=np.int32) - np.repeat(np.cumsum(each) - each, each)
    return rows, np.stack([of_span, nth * rows], 1).astype(np.int32)


def _parts(programs: int, positions: int, processors: int) -> int:
    """In how many parts positions are looked at, so that there are programs enough."""
    wanted = triton.cdiv(EACH * processors, max(1, programs))
    return max(1, min(triton.cdiv(positions, PART_TOKENS), wanted))


def _check_tables(block_tables: torch.Tensor, spans: int) -> None:
    if block_tables.dtype != torch.int32 or block_tables.ndim != 2 or len(block_tables) != spans:
        kind = f"{block_tables.dtype} of {tuple(block_tables.shape)}"
        raise ValueError(f"block_tables is {kind}; it must be int32, a row for each span")


def _check_spans(spans: Sequence[Span], room: int) -> None:
    for index, span in enumerate(spans):
        if span.tokens < 1 or span.prefix < 0 or span.end > room:
            raise ValueError(f"spans[{index}] is {span}; its block table has {room} positions")
