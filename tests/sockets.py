"""A node on a host of two sockets, for tests: the second NUMA node has all CPUs of this process,
and the kernel heeds what it is told of pages. Nothing else is replaced.

As a program it is `kvstore` on such a host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvstore.core.spread import Spread
from kvstore.memory import numa
from tests.nodes import NodeProcess, short_directory
from tests.standing_in import StandingIn

FAR, NEAR = 0, 1


def stand_in(change: pytest.MonkeyPatch) -> None:
    """From now on this process is on such a host."""
    here = frozenset(os.sched_getaffinity(0))
    nodes = {FAR: frozenset({max(here) + 1}), NEAR: here}
    change.setattr(numa, "nodes", lambda: nodes)

    def heeded(address: int, spread: Spread) -> Spread:
        return spread

    change.setattr("kvstore.memory.arena.bound", heeded)


@contextmanager
def on_two(**options: Any) -> Iterator[NodeProcess]:
    """A node in a directory of its own, for as long as the block lasts."""
    with short_directory() as directory:
        node = StandingIn("tests.sockets", directory, **options)
        try:
            yield node.start()
        finally:
            node.close()


def main() -> None:
    from kvstore.cli.main import main as command

    with pytest.MonkeyPatch.context() as change:
        stand_in(change)
        sys.exit(command())


if __name__ == "__main__":
    main()
