"""How close a GPU's gather and scatter come to copying: 1 GiB of paged KV, Llama-8B geometry.

What is timed is a call's work on the device, tables and launches included, right behind another
call, as they come where there is much to move, by the device's own clock. It is held against
`Tensor.copy_` of as many bytes within the device, timed alike in the same rounds. What a call takes
on a device that has nothing to do until the host has told it is in the JSON (`alone_ms`). Moves
alone and moves that hash decide; codecs are printed, and their ratio is by the bytes that the
engine has. Takes a CUDA GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.guest import NotInstalled
from bench.report import Goal, Report, Row
from bench.rounds import Way, measure
from kvstore.codec import GROUP_TOKENS
from kvstore.kernels.shapes import Coding, Geometry, Pages
from kvstore.kernels.strips import Blocks
from kvstore.limits import GiB, KiB

RUNS = 40
GOAL = 0.85
KV_HEADS, DIM, LAYERS = 8, 128, 32
ITEM = 2  # bytes, of bfloat16


Clock = Callable[[Callable[[], object]], Way]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one problem."""

    bytes: int = 1 * GiB
    block_tokens: int = 64
    page_tokens: int = 16
    layers: int = LAYERS


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    if not torch.cuda.is_available():
        raise NotInstalled("a CUDA GPU is needed, and torch sees none here")
    device = torch.device("cuda", torch.cuda.current_device())
    return measured(runs, say, sizes or Sizes(), device, behind_another, on_device)


def on_device(act: Callable[[], object]) -> Way:
    """Seconds by the device's clock, from when the host begins to tell it."""

    def timed() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        act()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return timed


def behind_another(act: Callable[[], object]) -> Way:
    """Seconds by the device's clock, of the second of two in a row: the host is ahead of it."""

    second = on_device(act)

    def timed() -> float:
        act()
        return second()

    return timed


def measured(
    runs: int,
    say: Callable[[str], None],
    sizes: Sizes,
    device: torch.device,
    timed: Clock,
    alone: Clock,
) -> Report:
    rows = []
    for name, coding, counted in (
        ("moved", None, True),
        ("moved and hashed", None, True),
        ("fp8", Coding("fp8", "bfloat16", GROUP_TOKENS), False),
        ("int8", Coding("int8", "bfloat16", GROUP_TOKENS), False),
    ):
        say(name)
        problem = Problem(sizes, device, coding)
        module = _module(name == "moved")
        moves = {
            "gather": partial(module.gather, problem.arena, *problem.asked),
            "scatter": partial(module.scatter, problem.arena, *problem.asked),
        }
        ways = {way: timed(move) for way, move in moves.items()} | {"copy": timed(problem.copy)}
        ways |= {f"{way} alone": alone(move) for way, move in moves.items()}
        rounds = measure(ways, runs, say)
        for way in ("gather", "scatter"):
            rows.append(
                Row(
                    name=f"{way}, {name}",
                    sizes={"bytes": problem.engine.nbytes, "strip_bytes": problem.strip_bytes},
                    runs=rounds.count,
                    value=1e3 * rounds.median(way),
                    limit=1e3 * rounds.median("copy"),
                    ratio=rounds.ratio("copy", way),
                    spread=rounds.spread("copy", way),
                    counted=counted,
                    also={
                        "gb_per_second": problem.engine.nbytes / rounds.median(way) / 1e9,
                        "alone_ms": 1e3 * rounds.median(f"{way} alone"),
                    },
                )
            )
    return Report(
        name="kernels",
        unit="ms",
        against=f"{sizes.bytes >> 20} MiB copied within the device",
        ratio_is="copy time / kernel time",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


def _module(alone: bool) -> Any:
    from kvstore.kernels.gpu import pages, strips  # late: Triton is for machines with a GPU

    return pages if alone else strips


class Problem:
    """Pages in no order, full of numbers, and slots for all blocks of them."""

    def __init__(self, sizes: Sizes, device: torch.device, coding: Coding | None) -> None:
        run = DIM * ITEM
        geometry = Geometry(sizes.layers, KV_HEADS, sizes.block_tokens, 2, run, coding)
        page = KV_HEADS * sizes.page_tokens * 2 * run
        per_block = sizes.block_tokens // sizes.page_tokens
        blocks = max(1, sizes.bytes // (sizes.layers * page * per_block))
        pages = blocks * per_block
        shape = (sizes.layers, pages, page // ITEM)
        self.engine = torch.randn(shape, dtype=torch.bfloat16, device=device)
        self.strip_bytes = geometry.strip_stride
        head = -(-8 * geometry.strips // KiB) * KiB
        stride = head + -(-geometry.payload_bytes // KiB) * KiB
        self.arena = torch.zeros(blocks * stride, dtype=torch.uint8, device=device)
        tables = stride * np.arange(blocks)
        tokens = np.full(blocks, sizes.block_tokens, np.int32)
        described = Blocks(tables + head, tables, tokens, sizes.block_tokens * np.arange(blocks))
        addresses = self.engine.data_ptr() + page * pages * np.arange(sizes.layers)
        token = 2 * run
        where = Pages(
            addresses.astype(np.uint64), page, sizes.page_tokens * token, token, run,
            sizes.page_tokens, pages,
        )  # fmt: skip
        order = np.random.default_rng(0).permutation(pages)
        self.asked = (geometry, described, where, order, 0, sizes.layers, 0, KV_HEADS)
        self._copied = torch.empty_like(self.engine)

    def copy(self) -> None:
        self._copied.copy_(self.engine)
