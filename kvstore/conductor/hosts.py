"""Nodes by number, as the scheduler's arrays know them: those that hold blocks, and those that some
engine calls its own. A number is a node's for as long as it is one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from kvstore.conductor.index import HOLDERS_MAX
from kvstore.conductor.table import Table

NOBODY = -1


class Hosts:
    """`forget` is told each number that is free again."""

    def __init__(self, table: Table, forget: Callable[[int], None]) -> None:
        self._table, self._forget = table, forget
        # By number, empty where it is free. Another one when that changes: decisions keep it.
        self.names: tuple[str, ...] = ()
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._engines: dict[str, int] = {}  # how many call a node their own
        self._named: set[str] = set()
        self._version = -1  # of the table
        # By the node's number in the index; `NOBODY` for whoever must not be named.
        self.of_holder: NDArray[np.int32] = np.full(HOLDERS_MAX, NOBODY, np.int32)

    @property
    def count(self) -> int:
        """Numbers are less than this."""
        return len(self.names)

    def find(self, node: str) -> int | None:
        """The number of a node; None where nobody has blocks there or calls it its own."""
        return self._numbers.get(node)

    def number(self, node: str) -> int:
        """Of a node that has one."""
        return self._numbers[node]

    def numbers(self, nodes: Iterable[str]) -> set[int]:
        """Of those of these nodes that have one."""
        return {self._numbers[node] for node in nodes if node in self._numbers}

    def use(self, node: str) -> int:
        """One more engine calls this node its own."""
        self._engines[node] = self._engines.get(node, 0) + 1
        return self._numbered(node)

    def release(self, node: str) -> None:
        self._engines[node] -= 1
        if not self._engines[node]:
            del self._engines[node]
            self._drop_unless_used(node)

    def see(self, nodes: Iterable[str]) -> None:
        """These hold what they list, and nobody else may be named."""
        named, version = set(nodes), self._table.version
        if named == self._named and version == self._version:
            return
        gone, self._named, self._version = self._named - named, named, version
        for node in gone:
            self._drop_unless_used(node)
        self.of_holder[:] = NOBODY
        for node in named:
            self.of_holder[self._table.number(node)] = self._numbered(node)

    def check(self) -> None:
        used = {number: name for number, name in enumerate(self.names) if name}
        assert used == {number: name for name, number in self._numbers.items()}
        assert set(used.values()) == self._engines.keys() | self._named, "a number of nobody"
        assert sorted([*used, *self._free]) == list(range(self.count)), "a number is lost"

    def _numbered(self, node: str) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._free.pop() if self._free else len(self.names)
            self._rename(number, node)
            self._numbers[node] = number
        return number

    def _drop_unless_used(self, node: str) -> None:
        if node in self._engines or node in self._named:
            return
        number = self._numbers.pop(node)
        self._rename(number, "")
        self._free.append(number)
        self._forget(number)

    def _rename(self, number: int, name: str) -> None:
        self.names = (*self.names[:number], name, *self.names[number + 1 :])
