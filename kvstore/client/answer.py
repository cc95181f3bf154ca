"""The reply to a call that was sent already: who sent it does other things meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from kvstore.errors import KVStoreError

T = TypeVar("T")


class Answer(Generic[T]):
    """To be had by `get`, or dropped: until then what it comes by is not free for another call."""

    def __init__(self, wait: Callable[[], T]) -> None:
        self._wait: Callable[[], T] | None = wait

    @property
    def had(self) -> bool:
        return self._wait is None

    def get(self) -> T:
        """Wait for it, once. Raises as the call does."""
        assert self._wait is not None, "an answer is had once"
        wait, self._wait = self._wait, None
        return wait()

    def drop(self) -> None:
        """Nobody wants it, if it was not had. Waits for it, and never raises what it says."""
        if self._wait is not None:
            with suppress(KVStoreError):
                self.get()
