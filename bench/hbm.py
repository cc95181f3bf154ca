"""How close KV comes to the bus between HBM and pinned memory: 1 GiB of pages, Llama-8B geometry.

What is timed is a whole move as the client makes it, gathered from pages in no order piece after
piece and copied to pinned memory, or the other way, until all of it is there. What a transport does
with the pieces is left out. It is held against one `cudaMemcpyAsync` of as many bytes between
pinned memory and HBM, in the same direction and the same rounds. Takes a CUDA GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.guest import NotInstalled
from bench.kernels import Problem, Sizes
from bench.report import Goal, Report, Row
from bench.rounds import measure, timed
from kvstore.kernels.pieces import Piece, Run

RUNS = 30
GOAL = 0.95


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    if not torch.cuda.is_available():
        raise NotInstalled("a CUDA GPU is needed, and torch sees none here")
    return measured(runs, say, sizes or Sizes(), torch.device("cuda"))


def measured(runs: int, say: Callable[[str], None], sizes: Sizes, device: torch.device) -> Report:
    problem = _Moved(sizes, device)
    ways = {
        "out": timed(problem.out),
        "copied out": timed(problem.copied_out),
        "in": timed(problem.in_),
        "copied in": timed(problem.copied_in),
    }
    rounds = measure(ways, runs, say)
    rows = [
        Row(
            name=name,
            sizes={"bytes": problem.bytes},
            runs=rounds.count,
            value=1e3 * rounds.median(way),
            limit=1e3 * rounds.median(f"copied {way}"),
            ratio=rounds.ratio(f"copied {way}", way),
            spread=rounds.spread(f"copied {way}", way),
            also={"gb_per_second": problem.bytes / rounds.median(way) / 1e9},
        )
        for name, way in (("HBM to pinned memory", "out"), ("pinned memory to HBM", "in"))
    ]
    return Report(
        name="hbm",
        unit="ms",
        against=f"{problem.bytes >> 20} MiB copied at once between HBM and pinned memory",
        ratio_is="copy time / move time",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


class _Moved:
    """Pages in no order, and all blocks of them on their way."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        from kvstore.kernels.gpu.staging import Staging  # late: Triton is for machines with a GPU

        self._problem = Problem(sizes, device, None)
        geometry, blocks, pages, table, *_ = self._problem.asked
        self._staging = Staging(device)
        self._run = Run(geometry, pages, table, blocks.tokens, blocks.starts)
        self._device = device
        engine: Any = self._problem.engine
        self.bytes: int = engine.nbytes
        pinned = device.type == "cuda"
        self._host = torch.empty(engine.shape, dtype=engine.dtype, pin_memory=pinned)
        self._copied = torch.empty_like(engine)

    def out(self) -> None:
        self._staging.gathered(self._run, lambda piece: None)

    def in_(self) -> None:
        def all_good(piece: Piece) -> np.ndarray[Any, np.dtype[np.bool_]]:
            return np.ones(piece.rows.stop - piece.rows.start, np.bool_)

        self._staging.scattered(self._run, all_good)

    def copied_out(self) -> None:
        self._host.copy_(self._copied, non_blocking=True)
        self._wait()

    def copied_in(self) -> None:
        self._copied.copy_(self._host, non_blocking=True)
        self._wait()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
