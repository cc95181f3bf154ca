"""A node that waits ten times as long for what is open when it is told to end, and for what it asks
others, and whose lease lasts four times as long, for tests of what it does meanwhile and of what it
makes of their answers: on a busy machine the usual time may be over before they have looked, and
before an answer comes.

As a program it is `kvstore` with those times.
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
    from kvstore.node import daemon, heartbeat, link, peers, whereabouts

    class Heartbeat(heartbeat.Heartbeat):
        def __init__(self, opened: Any, record: Any, lease_ms: int, *more: Any, **named: Any):
            super().__init__(opened, record, 4 * lease_ms, *more, **named)

    daemon.DRAIN_SECONDS *= 10
    daemon.Heartbeat = Heartbeat  # type: ignore[attr-defined]
    link.Link.call.__defaults__ = (10 * link.CALL_SECONDS,)
    link.STALL_SECONDS *= 10
    peers.BEGIN_SECONDS *= 10
    whereabouts.ASK_SECONDS *= 10
    sys.exit(command())


if __name__ == "__main__":
    main()
