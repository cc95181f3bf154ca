"""Leaves by recency, readable from both ends without taking anything out.

Two heaps hold an entry of every leaf. An entry is not searched for when its block is touched, gets
a block behind it or goes: it is skipped from then on, and swept out once such entries are the most.
What came since the ends were last read waits outside the heaps, each block once: while nobody looks
for room, which is when blocks are used the most, a use costs one place in a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

SWEEP_MIN = 1_024  # entries of a heap that it is not worth to sweep
_MANY = 8  # one in so many: sooner put in order together than one by one

Entry = tuple[int, bytes]  # (stamp, key); the stamp negated in the heap of the youngest


class Leaves:
    """The leaves of one owner and kind from both ends, and entries that were leaves once."""

    def __init__(self) -> None:
        self.old: list[Entry] = []
        self.young: list[Entry] = []
        self.new: dict[bytes, int] = {}  # stamps by key: not in the heaps yet
        self._sweep_at = SWEEP_MIN

    def push(self, stamps: Mapping[bytes, int], is_leaf: Callable[[Entry], bool]) -> None:
        """By key."""
        self.new.update(stamps)
        if len(self.new) > self._sweep_at:
            self._take_in(is_leaf)

    def drop(self, key: bytes) -> None:
        """A block is gone: what waits of it need not be looked at."""
        self.new.pop(key, None)

    def ends(self, is_leaf: Callable[[Entry], bool]) -> tuple[End, End]:
        self._take_in(is_leaf)
        for heap in (self.old, self.young):
            while heap and not is_leaf(heap[0]):
                heappop(heap)
        return End(self.old), End(self.young)

    def entries(self) -> set[Entry]:
        """Those that both heaps have, and those that wait."""
        both = {(-stamp, key) for stamp, key in self.young}.intersection(self.old)
        return both | {(stamp, key) for key, stamp in self.new.items()}

    def _take_in(self, is_leaf: Callable[[Entry], bool]) -> None:
        """Move what waits into the heaps, and sweep those if that makes them too large."""
        came = [(stamp, key) for key, stamp in self.new.items() if is_leaf((stamp, key))]
        self.new.clear()
        full = max(len(self.old), len(self.young)) + len(came) > self._sweep_at
        for heap, sign in ((self.old, 1), (self.young, -1)):
            if full:
                heap[:] = {*filter(is_leaf, heap), *((sign * at, key) for at, key in came)}
                heapify(heap)
            elif _MANY * len(came) > len(heap):
                heap += [(sign * at, key) for at, key in came]
                heapify(heap)
            else:
                for at, key in came:
                    heappush(heap, (sign * at, key))
        if full:
            self._sweep_at = max(SWEEP_MIN, 2 * len(self.old))


class End:
    """Reads a heap from its least on, without taking anything off it."""

    def __init__(self, heap: list[Entry]) -> None:
        self._heap = heap
        self._next = [(heap[0], 0)] if heap else []  # a heap of (entry, place); -1: pushed here

    def push(self, entry: Entry) -> None:
        heappush(self._next, (entry, -1))

    def first(self, goes: Callable[[Entry], bool]) -> Entry | None:
        """The least that goes; those before it are not looked at again."""
        while self._next and not goes(self._next[0][0]):
            _, at = heappop(self._next)
            for below in (2 * at + 1, 2 * at + 2) if at >= 0 else ():
                if below < len(self._heap):
                    heappush(self._next, (self._heap[below], below))
        return self._next[0][0] if self._next else None
