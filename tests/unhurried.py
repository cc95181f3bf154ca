"""A node that waits ten times as long for what is open when it is told to end, for tests of what it
does meanwhile: on a busy machine the usual time may be over before they have looked.

As a program it is `kvstore` with that time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.nodes import NodeProcess, short_directory
from tests.standing_in import StandingIn


@contextmanager
def unhurried(**options: Any) -> Iterator[NodeProcess]:
    """A node in a directory of its own, for as long as the block lasts."""
    with short_directory() as directory:
        node = StandingIn("tests.unhurried", directory, **options)
        try:
            yield node.start()
        finally:
            node.close()


def main() -> None:
    from kvstore.cli.main import main as command
    from kvstore.node import daemon

    daemon.DRAIN_SECONDS *= 10
    sys.exit(command())


if __name__ == "__main__":
    main()
