"""How close KV comes to the bus between HBM and the host: 1 GiB of pages, Llama-8B geometry.

What is timed is a whole move as the client makes it, until all of it is there. Through pinned
memory it is gathered from pages in no order, piece after piece, and copied, or the other way; what
a transport does with the pieces is left out. Straight to and from slots it is all there is to a
move: hashed on the device, copied between there and a shared mapping that CUDA was told of, entered
in the slots' tables, and verified on the way back. Both are held against one `cudaMemcpyAsync` of
as many bytes between HBM and memory of the same kind, torch's pinned one or the mapping, in the
same direction and the same rounds. Slots that a node lends in HBM are filled and read without the
bus; beside one copy of as many bytes within HBM they are told, and decide nothing: hashing and
verifying read them more than once. Takes a CUDA GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.guest import NotInstalled
from bench.kernels import Problem, Sizes
from bench.report import Goal, Report, Row
from bench.rounds import measure, timed
from kvstore.kernels.pieces import Piece, Places, Run
from kvstore.memory.arena import Arena

RUNS = 30
GOAL = 0.95
PIN_SECONDS = 60.0  # that pinning the slots may take


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    if not torch.cuda.is_available():
        raise NotInstalled("a CUDA GPU is needed, and torch sees none here")
    return measured(runs, say, sizes or Sizes(), torch.device("cuda", torch.cuda.current_device()))


def measured(runs: int, say: Callable[[str], None], sizes: Sizes, device: torch.device) -> Report:
    problem = _Moved(sizes, device)
    ways = {
        "out": timed(problem.out),
        "to slots": timed(problem.to_slots),
        "copied out": timed(problem.copied_out),
        "in": timed(problem.in_),
        "from slots": timed(problem.from_slots),
        "copied in": timed(problem.copied_in),
        "slots copied in": timed(problem.slots_copied_in),
        "slots copied out": timed(problem.slots_copied_out),
        "to lent slots": timed(problem.to_lent),
        "from lent slots": timed(problem.from_lent),
        "copied there": timed(problem.copied_there),
    }
    try:
        problem.wait_until_known()
        rounds = measure(ways, runs, say)
    finally:
        problem.close()
    rows = [
        Row(
            name=name,
            sizes={"bytes": problem.bytes},
            runs=rounds.count,
            value=1e3 * rounds.median(way),
            limit=1e3 * rounds.median(copy),
            ratio=rounds.ratio(copy, way),
            spread=rounds.spread(copy, way),
            counted=copy != "copied there",
            also={"gb_per_second": problem.bytes / rounds.median(way) / 1e9},
        )
        for name, way, copy in (
            ("HBM to pinned memory", "out", "copied out"),
            ("pinned memory to HBM", "in", "copied in"),
            ("HBM to slots", "to slots", "slots copied out"),
            ("slots to HBM", "from slots", "slots copied in"),
            ("pages to slots in HBM", "to lent slots", "copied there"),
            ("slots in HBM to pages", "from lent slots", "copied there"),
        )
    ]
    return Report(
        name="hbm",
        unit="ms",
        against=f"{problem.bytes >> 20} MiB copied at once between HBM and that memory",
        ratio_is="copy time / move time",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


class _Moved:
    """Pages in no order, and all blocks of them on their way."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        # Late: Triton is for machines with a GPU.
        from kvstore.kernels.gpu.registered import Registered
        from kvstore.kernels.gpu.resident import Resident
        from kvstore.kernels.gpu.staging import Staging
        from kvstore.kernels.gpu.turn import Turn

        self._problem = Problem(sizes, device, None)
        geometry, blocks, pages, table, *span = self._problem.asked
        self._staging, self._pages, self._table = Staging(device), pages, table
        self._arena = Arena.create(self._problem.arena.nbytes)
        # As one piece: these slots lie side by side, and none may be in two.
        self._registered = Registered(self._arena.bytes, device, piece_bytes=self._arena.size)
        self._places = Places(self._arena.bytes, geometry, tuple(span), blocks)
        self._run = Run(geometry, pages, table, blocks.tokens, blocks.starts)
        self._device = device
        engine: Any = self._problem.engine
        self.bytes: int = engine.nbytes
        pinned = device.type == "cuda"
        lent = torch.empty(len(self._arena.bytes), dtype=torch.uint8, device=device)
        self._lent = Resident(lent, 0, Turn(device))
        self._host = torch.empty(engine.shape, dtype=engine.dtype, pin_memory=pinned)
        slots = torch.from_numpy(self._arena.bytes)[: engine.nbytes]
        self._slots = slots.view(engine.dtype).view(engine.shape)
        self._copied, self._other = torch.empty_like(engine), torch.empty_like(engine)

    def out(self) -> None:
        self._staging.gathered(self._run, lambda piece: None)

    def in_(self) -> None:
        def all_good(piece: Piece) -> np.ndarray[Any, np.dtype[np.bool_]]:
            return np.ones(piece.rows.stop - piece.rows.start, np.bool_)

        self._staging.scattered(self._run, all_good)

    def to_slots(self) -> None:
        self._staging.straight.gathered(self._places, self._pages, self._table)

    def from_slots(self) -> None:
        found = self._staging.straight.scattered(self._places, self._pages, self._table)
        if not found.all():
            raise RuntimeError("some of the blocks were not what had been stored")

    def to_lent(self) -> None:
        self._lent.gathered(self._places, self._pages, self._table)

    def from_lent(self) -> None:
        if not self._lent.scattered(self._places, self._pages, self._table).all():
            raise RuntimeError("some of the blocks were not what had been stored")

    def copied_there(self) -> None:
        self._other.copy_(self._copied)
        self._wait()

    def close(self) -> None:
        """CUDA forgets the slots."""
        self._registered.end()
        del self._places, self._slots
        self._arena.close()

    def copied_out(self) -> None:
        self._host.copy_(self._copied, non_blocking=True)
        self._wait()

    def copied_in(self) -> None:
        self._copied.copy_(self._host, non_blocking=True)
        self._wait()

    def slots_copied_out(self) -> None:
        self._slots.copy_(self._copied, non_blocking=True)
        self._wait()

    def slots_copied_in(self) -> None:
        self._copied.copy_(self._slots, non_blocking=True)
        self._wait()

    def wait_until_known(self) -> None:
        """Until CUDA may copy to and from all of the slots."""
        until, every = time.monotonic() + PIN_SECONDS, np.array([len(self._arena.bytes)])
        while not self._registered.covers(every - 1, every):
            if time.monotonic() > until:
                raise NotInstalled(f"{every[0]} bytes could not be pinned in {PIN_SECONDS:.0f} s")
            time.sleep(0.01)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
