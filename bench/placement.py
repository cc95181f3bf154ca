"""Which of a trace's hits are in DRAM, when DRAM is a part of what SSD holds: against LRU.

A replay through the node's own `Index` (what SSD keeps) and `Lanes` (which copies DRAM keeps), a
request at a time. All blocks of a request come to DRAM, written or read; then copies go until they
fit. LRU keeps the copies that were used last, of the same blocks on the same SSD.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from bench.eviction import OWNER
from bench.report import Goal, Report, Row
from bench.traces import BadTrace, Request, Trace, described, read
from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.lifecycle import Slot, State
from kvstore.core.slabs import Slabs

RUNS = 1  # a replay has no chance in it
TAKES = ("trace", "blocks")
GOAL = 1.0
BLOCKS = (10_000, 30_000, 50_000)  # on SSD
DRAM_PART = 10  # of what SSD holds, one in this is in DRAM too
TENANT = "default"


class Replay:
    """One node, and beside its DRAM one that keeps what was used last."""

    def __init__(self, ssd_blocks: int) -> None:
        self.ssd_blocks, self.dram_blocks = ssd_blocks, ssd_blocks // DRAM_PART
        self.index = Index()
        self.lanes = Lanes(self.index, Slabs(1, 1))
        self.recent: OrderedDict[bytes, None] = OrderedDict()
        self.hits = self.in_dram = self.in_recent = 0
        self._number = 0

    def ask(self, request: Request) -> None:
        index, keys = self.index, request.keys
        found = index.longest(keys)
        slots = [index.held(key) for key in keys[:found]]
        self.hits += found
        self.in_dram += sum(slot in self.lanes for slot in slots if slot is not None)
        self.in_recent += sum(key in self.recent for key in keys[:found])
        for place, key in enumerate(keys):
            if key not in index:
                index.add(self._made(request, place))
        index.touch(keys)
        for key in reversed(keys):
            self.recent[key] = None
            self.recent.move_to_end(key)
            slot = index.held(key)
            assert slot is not None
            self.lanes.discard(slot)
            self.lanes.add(slot)
        for slot in list(islice(index.coldest(), max(0, len(index) - self.ssd_blocks))):
            self.lanes.discard(slot)
            self.recent.pop(slot.key, None)
            index.drop(slot.key, Miss.EVICTED)
        over = max(0, len(self.lanes) - self.dram_blocks)
        for slot in list(islice(self.lanes.coldest(OWNER, TENANT, ()), over)):
            self.lanes.discard(slot)
        while len(self.recent) > self.dram_blocks:
            self.recent.popitem(last=False)

    def _made(self, request: Request, place: int) -> Slot:
        self._number += 1
        slot = Slot(self._number, 0, OWNER, State.SEALED, key=request.keys[place], tenant=TENANT)
        slot.parent = request.keys[place - 1] if place else b""
        slot.short = request.short and place == len(request.keys) - 1
        return slot


def run(
    runs: int,
    say: Callable[[str], None],
    trace: Path | None = None,
    blocks: list[int] | None = None,
) -> Report:
    if trace is None:
        raise BadTrace(f"--trace FILE is needed, JSON lines of {described()}")
    read_trace = read(trace)
    rows = tuple(_row(read_trace, count, say) for count in blocks or BLOCKS)
    return Report(
        "placement",
        "share of hits in DRAM",
        "LRU",
        "hits in DRAM / those of LRU",
        GOAL,
        Goal.AT_LEAST,
        rows,
    )


def _row(trace: Trace, blocks: int, say: Callable[[str], None]) -> Row:
    replay = Replay(blocks)
    for request in trace.requests:
        replay.ask(request)
    ours, lru = (hits / max(1, replay.hits) for hits in (replay.in_dram, replay.in_recent))
    say(f"{blocks} blocks on SSD, {replay.dram_blocks} in DRAM: {ours:.3f}, lru {lru:.3f}")
    sizes = {"blocks": blocks, "dram_blocks": replay.dram_blocks}
    return Row(f"{blocks} blocks", sizes, 1, ours, lru, ours / lru if lru else 1.0)
