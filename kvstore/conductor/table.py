"""The index of the pool: which node lists which block in which tier. Some 10 bytes for each pair.

It is told by each node about itself and believes nobody else. A node leaves in one step.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.core.fingerprints import Fingerprints, Prints, Tiers


class Table:
    """Blocks by node. A node that is not in it is one of which not all is known yet."""

    def __init__(self) -> None:
        self._nodes: dict[str, Fingerprints] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def replace(self, node: str, blocks: Fingerprints) -> None:
        """This, and nothing that was said before, is what the node lists."""
        self._nodes[node] = blocks

    def change(self, node: str, prints: Prints, tiers: Tiers) -> None:
        """These blocks of a node that is in the table are in these tiers now; 0: in none."""
        self._nodes[node].put_all(prints, tiers)

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    def longest(self, prints: list[int], nodes: Iterable[str]) -> dict[str, int]:
        """How many leading blocks of a chain each of these nodes lists; those with none are left
        away."""
        known = ((node, self._nodes[node]) for node in nodes if node in self._nodes)
        found = {node: blocks.longest(prints) for node, blocks in known}
        return {node: count for node, count in found.items() if count}

    def tiers(self, node: str, prints: Prints) -> Tiers:
        """Of each block at a node that is in the table; 0 where it is not listed."""
        return self._nodes[node].tiers(prints)

    def count_max(self, node: str) -> int:
        """How many blocks a node that is in the table lists, or some more."""
        return self._nodes[node].count_max

    def check(self) -> None:
        for blocks in self._nodes.values():
            blocks.check()
