"""Who waits for a request: once nobody does, or it has enough, the calls that are made for it end,
wherever it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kvstore.errors import Unavailable


class Cancels(Protocol):
    """A call that can be cancelled from any thread, also when it is over."""

    def cancel(self) -> object: ...


class CallerLeft(Unavailable):
    """Why a request ended for which nobody waits: no fault of anybody's."""


class Caller:
    """Of one request. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[Cancels] = set()
        self._left = threading.Event()
        self.has_enough = False

    def leave(self) -> None:
        """It waits no more."""
        self._left.set()
        self._end()

    def enough(self) -> None:
        """It wants no more than it was told: the request is whole."""
        self.has_enough = True
        self._end()

    def check(self) -> None:
        """Raises `CallerLeft`."""
        if self._left.is_set():
            raise CallerLeft("the caller left")

    def pause(self, seconds: float) -> None:
        """Returns after so long. Raises `CallerLeft`, as soon as it has."""
        self._left.wait(seconds)
        self.check()

    @contextmanager
    def waits_for(self, call: Cancels) -> Iterator[None]:
        """Inside this the call is cancelled if the caller leaves."""
        with self._lock:
            self._calls.add(call)
        if self._left.is_set() or self.has_enough:
            call.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    def _end(self) -> None:
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()
