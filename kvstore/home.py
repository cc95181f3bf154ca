"""What a process made is its own, and not the copy's that a fork makes of it.

The copy has the same sockets: of two that read one, each is given the other's answers. And it has
gRPC without the threads by which that hears anything. So it is refused at once, and harms nobody.
"""

from __future__ import annotations

import os

from kvstore.errors import Unavailable


class Home:
    """The process in which this was made."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise `Unavailable` in any other. No lock is taken before this: in a copy, one that
        another thread held at the fork is never given back."""
        if not self.here:
            raise Unavailable(
                "this client was made before its process was forked: make one in each process"
            )
