"""What the node's eviction keeps of a trace, against LRU and against one that knows the future.

A replay asks, touches, adds and drops in the node's own `Index`, a request at a time: the longest
listed prefix is its hit; then all its blocks are held; then the coldest go until what is held fits.
LRU and Belady, of the same prompts under the same rules, are written here in few lines.

`saved_s` is of a cost model, not of a measurement: see `prefill_s`.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bench.report import Goal, Report, Row
from bench.traces import BadTrace, Request, Trace, described, read
from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, State

RUNS = 1  # a replay has no chance in it
TAKES = ("trace", "blocks")  # options of the command
GOAL = 0.99
BLOCKS = (1_000, 3_000, 10_000, 30_000, 50_000)
OWNER = (b"n" * 32, 0)

# A model: a Llama of 8e9 parameters, 32 layers and a width of 4,096, on an accelerator that does
# 4e14 useful operations a second. A token costs two operations a parameter, and four a layer and
# unit of width for each token it looks back at, on average half of the prompt.
TOKEN_S = 2 * 8e9 / 4e14
PAIR_S = 4 * 32 * 4_096 / 2 / 4e14


def prefill_s(tokens: int) -> float:
    """Model seconds to compute the first so many tokens of a prompt."""
    return TOKEN_S * tokens + PAIR_S * tokens**2


class Replayed(Report):
    """A report whose rows have their figures as keys of their own too."""

    def as_dict(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        plain = super().as_dict(machine)
        for row in plain["rows"]:
            row |= row["sizes"] | row["also"]
        return plain


@dataclass(frozen=True, slots=True)
class Kept:
    """How many leading blocks of each request were there when it came."""

    trace: Trace
    found: Sequence[int]

    @property
    def hit(self) -> float:
        """Of all blocks asked for."""
        return sum(self.found) / max(1, self.trace.blocks)

    @property
    def hit_scored(self) -> float:
        """Of the blocks that no more than half of all requests ask for."""
        requests = self.trace.requests
        asked = Counter(key for request in requests for key in set(request.keys))
        usual = {key for key, count in asked.items() if 2 * count > len(requests)}
        scored = [[key not in usual for key in request.keys] for request in requests]
        hits = sum(sum(one[:n]) for one, n in zip(scored, self.found, strict=True))
        return hits / max(1, sum(map(sum, scored)))

    @property
    def saved_s(self) -> float:
        size = self.trace.block_tokens
        pairs = zip(self.trace.requests, self.found, strict=True)
        return sum(prefill_s(min(request.tokens, size * n)) for request, n in pairs)


Policy = Callable[[Sequence[Request], int], list[int]]


def node(requests: Sequence[Request], blocks: int) -> list[int]:
    """What the node's index finds of each request, if it may hold so many blocks."""
    index, found = Index(), []
    for request in requests:
        found.append(index.longest(request.keys))
        parent = b""
        for place, key in enumerate(request.keys):
            if key not in index:
                slot = Slot(0, 0, OWNER, State.SEALED, key=key, parent=parent)
                slot.short = request.short and place == len(request.keys) - 1
                index.add(slot)
            parent = key
        index.touch(request.keys)
        for slot in list(islice(index.coldest(), max(0, len(index) - blocks))):
            index.drop(slot.key, Miss.EVICTED)
    return found


def lru(requests: Sequence[Request], blocks: int) -> list[int]:
    """The same for the least recently used, the deepest first."""
    held: OrderedDict[bytes, None] = OrderedDict()
    found = []
    for request in requests:
        found.append(_leading(request.keys, held))
        for key in reversed(request.keys):
            held[key] = None
            held.move_to_end(key)
        while len(held) > blocks:
            held.popitem(last=False)
    return found


def belady(requests: Sequence[Request], blocks: int) -> list[int]:
    """The same for what is asked for again last or never, the deepest first."""
    never = len(requests)
    uses: defaultdict[bytes, list[int]] = defaultdict(list)
    for number in range(never - 1, -1, -1):
        for key in requests[number].keys:
            uses[key].append(number)
    held: dict[bytes, int] = {}  # key -> request that asks for it next
    last: list[tuple[int, int, bytes]] = []  # a heap; entries that `held` does not bear out are old
    found = []
    for request in requests:
        found.append(_leading(request.keys, held))
        for place, key in enumerate(request.keys):
            uses[key].pop()
            held[key] = uses[key][-1] if uses[key] else never
            heapq.heappush(last, (-held[key], -place, key))
        while len(held) > blocks:
            when, _, key = heapq.heappop(last)
            if held.get(key) == -when:
                del held[key]
    return found


def run(
    runs: int,
    say: Callable[[str], None],
    trace: Path | None = None,
    blocks: Sequence[int] | None = None,
) -> Report:
    if trace is None:
        raise BadTrace(f"--trace FILE is needed, JSON lines of {described()}")
    read_trace = read(trace)
    say(f"{len(read_trace.requests)} requests of {read_trace.blocks} blocks")
    rows = tuple(_row(read_trace, count, say) for count in blocks or BLOCKS)
    return Replayed(
        "eviction",
        "share of blocks found",
        "LRU",
        "hits / hits of LRU",
        GOAL,
        Goal.AT_LEAST,
        rows,
    )


def _row(trace: Trace, blocks: int, say: Callable[[str], None]) -> Row:
    policies: dict[str, Policy] = {"node": node, "lru": lru, "belady": belady}
    kept = {name: Kept(trace, how(trace.requests, blocks)) for name, how in policies.items()}
    ours, hit = kept["node"], {name: one.hit for name, one in kept.items()}
    say(", ".join([f"{blocks} blocks", *(f"{name} {of:.4f}" for name, of in hit.items())]))
    figures = {
        "hit": ours.hit,
        "hit_scored": ours.hit_scored,
        "saved_s": ours.saved_s,
        "lru": hit["lru"],
        "belady": hit["belady"],
    }
    ratio = ours.hit / hit["lru"] if hit["lru"] else 1.0  # nothing to find, so nothing was missed
    sizes = {"blocks": blocks}
    return Row(f"{blocks} blocks", sizes, 1, ours.hit, hit["lru"], ratio, also=figures)


def _leading(keys: Sequence[bytes], held: Mapping[bytes, object]) -> int:
    return next((place for place, key in enumerate(keys) if key not in held), len(keys))
