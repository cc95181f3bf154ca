"""By which a call on data connections can be given up while threads stand in it, or before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kvstore.errors import Unavailable


class Way(Protocol):
    """A connection, for one call at a time."""

    def end(self) -> None:
        """Make that call fail, in whatever thread it stands."""


class Term:
    """Of one call. Any thread may end it; connections that are in use for it then break."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ways: set[Way] = set()
        self._ended = False
        self.waits = False  # for a thread of this process: nobody else has to do with it yet

    @contextmanager
    def of(self, way: Way) -> Iterator[None]:
        """Inside it a connection moves for this call. Raises `Unavailable` once that is ended, also
        where all has come by then: the connection broke all the same."""
        with self._lock:
            if self._ended:
                raise _unwanted()
            self._ways.add(way)
        try:
            yield
        finally:
            with self._lock:
                self._ways.discard(way)
                broken = self._ended
        if broken:
            raise _unwanted()

    def end(self) -> None:
        """Nobody wants what the call brings any more."""
        with self._lock:
            self._ended = True
            for way in self._ways:
                way.end()


def _unwanted() -> Unavailable:
    return Unavailable("nobody wants it any more")
