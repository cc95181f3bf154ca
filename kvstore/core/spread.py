"""An arena spread over NUMA nodes: a range for each, in whole slabs, as equal as they come.

So a slot lies on one NUMA node, and so does what of the arena is large and lies together, but for
what lies across the end of a range. NUMA nodes go by the numbers that Linux gives them. Where
nothing is said of an arena it has one NUMA node, or nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Range(NamedTuple):
    """Bytes [first, last) of an arena, and the NUMA node that they are on."""

    numa_node: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The ranges of one arena, which leave nothing of it out; or none."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def over(cls, numa_nodes: Sequence[int], arena_bytes: int, slab_bytes: int) -> Spread:
        """An arena of whole slabs over these NUMA nodes, or as many as it has slabs for."""
        slabs, count = arena_bytes // slab_bytes, len(numa_nodes)
        ends = [slabs * i // count * slab_bytes for i in range(count + 1)] if count else []
        shares = zip(numa_nodes, pairwise(ends), strict=True)
        return cls.of([(node, last - first) for node, (first, last) in shares])

    @classmethod
    def of(cls, shares: Sequence[tuple[int, int]]) -> Spread:
        """(NUMA node, bytes) each, one after the other."""
        ranges: list[Range] = []
        at = 0
        for node, size in shares:
            if size:
                ranges.append(Range(node, at, at + size))
            at += size
        return cls(tuple(ranges)) if len(ranges) > 1 else cls()

    def on(self, numa_node: int | None) -> list[tuple[int, int]]:
        """The bytes [first, last) that are on a NUMA node."""
        return [(one.first, one.last) for one in self.ranges if one.numa_node == numa_node]

    def of_slabs(self, slab_bytes: int) -> list[int]:
        """The NUMA node of each slab, in the arena's order; none where nothing is said."""
        return [
            one.numa_node
            for one in self.ranges
            for _ in range((one.last - one.first) // slab_bytes)
        ]


ALIKE = Spread()
