"""The index of the pool by the nodes' names: which node lists which block in which tiers.

It is told by each node about itself and believes nobody else. What a node lists anew comes in bit
by bit beside what it listed before, and takes its place in one step; a node leaves in one step.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from kvstore.conductor.index import HOLDERS_MAX, Lengths, PoolIndex
from kvstore.core.fingerprints import IN_DRAM, Prints, Tiers


class Table:
    """Blocks by node. A node that is not in it is one of which not all is known yet."""

    def __init__(self, index: PoolIndex) -> None:
        self._index = index
        self._holders: dict[str, int] = {}
        self._coming: dict[str, int] = {}  # holders that are hidden still
        self._names: dict[int, str] = {}
        self._given = np.zeros(HOLDERS_MAX, np.int64)  # blocks that are new to each, by holder
        self.version = 0  # grows when a node gets a number, or loses it

    def __contains__(self, node: str) -> bool:
        return node in self._holders

    def __len__(self) -> int:
        """Blocks that some node or other has."""
        return len(self._index)

    def begin(self, node: str) -> None:
        """What a node lists is about to come, from its beginning. Raises `Overloaded`."""
        self.abandon(node)
        self._coming[node] = holder = self._index.add()
        self._given[holder] = 0

    def add(self, node: str, prints: Prints, tiers: Tiers) -> int:
        """More of it; how many blocks that are by now. Raises `Overloaded`."""
        holder = self._coming[node]
        self._index.put_all(holder, prints, tiers)
        return self._index.count(holder)

    def finish(self, node: str) -> None:
        """That was all: this, and nothing that was said before, is what the node lists."""
        holder = self._coming.pop(node)
        self._leave(node)
        self._holders[node], self._names[holder] = holder, node
        self._index.show(holder)
        self.version += 1

    def abandon(self, node: str) -> None:
        """What was coming will not be whole."""
        holder = self._coming.pop(node, None)
        if holder is not None:
            self._index.drop(holder)

    def change(self, node: str, prints: Prints, tiers: Tiers) -> int:
        """These blocks of a node that is in the table are in these tiers now, 0: in none. How many
        it lists by now. Raises `Overloaded`."""
        holder = self._holders[node]
        self._index.put_all(holder, prints, tiers)
        self._given[holder] += np.count_nonzero(
            tiers == IN_DRAM
        )  # others were there, or are not in DRAM
        return self._index.count(holder)

    def given(self) -> tuple[Lengths, Lengths]:
        """By the nodes' numbers: how many blocks came that were new to each since this was last
        asked, and how many it lists."""
        given, self._given = self._given, np.zeros(HOLDERS_MAX, np.int64)
        return given, self._index.counts

    def forget(self, node: str) -> None:
        self.abandon(node)
        self._leave(node)

    def sweep(self) -> bool:
        """Make some room where nodes left; whether there is more to do."""
        return self._index.sweep()

    def longest(self, prints: Prints, nodes: Container[str]) -> dict[str, int]:
        """How many leading blocks of a chain each of these nodes lists; those with none are left
        away."""
        holders, lengths = self._index.longest(prints)
        both = zip(map(self._names.__getitem__, holders.tolist()), lengths.tolist(), strict=True)
        return {node: length for node, length in both if node in nodes}

    def leading(self, prints: Prints) -> tuple[Lengths, Lengths, Lengths]:
        """The same of all nodes by their numbers, whoever may be named, and how much of it is in
        DRAM. Good until the next call."""
        return self._index.longest_in_dram(prints)

    def number(self, node: str) -> int:
        """Of a node that is in the table, until `version` is another."""
        return self._holders[node]

    def holding(self, prints: Prints) -> dict[str, int]:
        """How many of these blocks each node lists, those with none left away."""
        counts = self._index.holding(prints)
        some = np.flatnonzero(counts)
        both = zip(some.tolist(), counts[some].tolist(), strict=True)
        return {self._names[holder]: count for holder, count in both}

    def tiers(self, node: str, prints: Prints) -> Tiers:
        """Of each block at a node that is in the table; 0 where it is not listed."""
        return self._index.tiers(self._holders[node], prints)

    def count(self, node: str) -> int:
        """How many blocks a node that is in the table lists."""
        return self._index.count(self._holders[node])

    def check(self) -> None:
        self._index.check()
        assert self._names == {holder: node for node, holder in self._holders.items()}
        assert self._index.holders == len(self._holders) + len(self._coming), "nobody's holder"
        assert not self._names.keys() & set(self._coming.values()), "shown and hidden at once"

    def _leave(self, node: str) -> None:
        holder = self._holders.pop(node, None)
        if holder is not None:
            del self._names[holder]
            self._index.drop(holder)
            self.version += 1
