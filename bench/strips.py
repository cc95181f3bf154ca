"""How close strips that are hashed on their way come to memcpy, between pages as vLLM lays them out
and slots: what a connector on the CPU does, with nobody to ask.

KV of 32 layers and 8 heads of 256 bytes a token, K and V apart, in pages of 16 tokens that lie in
no order; blocks of one page, as vLLM's own are, and of 256 tokens. A page has each head's tokens in
a row (HND) or each token's heads (NHD). It is held against `np.copyto` of as many bytes, in the
same rounds, on one thread. Pages, slots and what is copied are larger than caches together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.pool import touched
from bench.report import Goal, Report, Row
from bench.rounds import measure, timed
from kvstore.kernels import strips
from kvstore.kernels.shapes import Geometry, Pages
from kvstore.kernels.strip_move import LINE
from kvstore.kernels.strips import Blocks
from kvstore.limits import MiB

RUNS = 20
GOAL = 0.70


@dataclass(frozen=True, slots=True)
class Sizes:
    bytes: int = 64 * MiB
    layers: int = 32
    kv_heads: int = 8
    run_bytes: int = 256  # of a token's K, or V, of a head
    page_tokens: int = 16
    block_tokens: tuple[int, ...] = (16, 256)


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    rows = []
    for block_tokens in sizes.block_tokens:
        for order in ("HND", "NHD"):
            say(f"{order}, blocks of {block_tokens} tokens")
            moves = _Moves(sizes, order, block_tokens)
            rows += [moves.row(way, runs, say) for way in ("gather", "scatter")]
    return Report(
        name="strips",
        unit="ms",
        against=f"a memcpy of {sizes.bytes // MiB} MiB, one thread",
        ratio_is="memcpy time / move time",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


class _Moves:
    """Pages of one order with KV in them, and slots for all of it."""

    def __init__(self, sizes: Sizes, order: str, block_tokens: int) -> None:
        s, self._order, self._block_tokens = sizes, order, block_tokens
        self._span = (0, s.layers, 0, s.kv_heads)
        self._geometry = Geometry(s.layers, s.kv_heads, block_tokens, 2, s.run_bytes)
        payload = self._geometry.payload_bytes
        count = max(1, s.bytes // payload)
        pages = count * block_tokens // s.page_tokens
        dice = np.random.default_rng(1)
        page = s.page_tokens * s.kv_heads * s.run_bytes
        self._kv = touched((s.layers, 2, pages, page))
        self._kv[:] = dice.integers(0, 256, (pages, page), np.uint8)
        layers = self._kv.ctypes.data + np.arange(s.layers) * self._kv.strides[0]
        head, token = (
            (s.page_tokens * s.run_bytes, s.run_bytes)
            if order == "HND"
            else (s.run_bytes, s.kv_heads * s.run_bytes)
        )
        self._pages = Pages(
            layers.astype(np.uint64), page, head, token, self._kv.strides[1], s.page_tokens, pages
        )
        self._table = dice.permutation(pages).astype(np.int64)
        lead = -(-8 * self._geometry.strips // LINE) * LINE
        self._arena = touched((count * (lead + payload),))
        slots = np.arange(count, dtype=np.int64) * (lead + payload)
        self._blocks = Blocks(
            slots + lead,
            slots,
            np.full(count, block_tokens, np.int32),
            np.arange(count, dtype=np.int64) * block_tokens,
        )
        self._source, self._target = touched((count * payload,)), touched((count * payload,))

    def row(self, way: str, runs: int, say: Callable[[str], None]) -> Row:
        def moved() -> None:
            of = (self._arena, self._geometry, self._blocks, self._pages, self._table)
            if way == "gather":
                strips.gather(*of, *self._span)
            elif not strips.scatter(*of, *self._span).all():
                raise RuntimeError("a strip did not have the hash of its bytes")

        copied = timed(lambda: np.copyto(self._target, self._source))
        rounds = measure({"move": timed(moved), "memcpy": copied}, runs, say)
        return Row(
            name=f"{way}, {self._order}, blocks of {self._block_tokens} tokens",
            sizes={"bytes": self._source.nbytes, "strip_bytes": self._geometry.strip_stride},
            runs=rounds.count,
            value=1e3 * rounds.median("move"),
            limit=1e3 * rounds.median("memcpy"),
            ratio=rounds.ratio("memcpy", "move"),
            spread=rounds.spread("memcpy", "move"),
        )
