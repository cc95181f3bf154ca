"""Chunks that LMCache has pinned: kept by the node from their lookup until they are let go.

A hold covers what one lookup found and ends when the last of its chunks is unpinned, or by its
time: LMCache does not promise to unpin what it pinned, and the pool must be able to evict.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.client import Hold

from .node import Node


@dataclass(slots=True, eq=False)
class _Held:
    hold: Hold
    names: set[str]  # not unpinned yet
    until: float


class Pins:
    """What is pinned, by the name of each chunk. Safe to use from several threads."""

    def __init__(self, node: Node, pin_seconds: float) -> None:
        self._node, self._pin_seconds = node, pin_seconds
        self._lock = threading.Lock()
        self._order: deque[_Held] = deque()  # oldest first
        self._of: dict[str, list[_Held]] = {}

    def take(self, names: Sequence[str]) -> int:
        """Pin the leading chunks that are there; how many."""
        until = time.monotonic() + self._pin_seconds  # before the node's own count begins
        hold = self._node.hold(names)
        if hold is None:
            return 0
        held = _Held(hold, set(names[: hold.blocks]), until)
        with self._lock:
            self._forget_lapsed()
            self._order.append(held)
            for name in held.names:
                self._of.setdefault(name, []).append(held)
        return hold.blocks

    def drop(self, name: str) -> bool:
        """Unpin a chunk once; False if it is not pinned, or not any more."""
        with self._lock:
            self._forget_lapsed()
            if name not in self._of:
                return False
            held = self._of[name][0]
            self._forget(held, name)
            last = not held.names
            if last:
                self._order.remove(held)
        if last:
            held.hold.release()
        return True

    def close(self) -> None:
        with self._lock:
            held = list(self._order)
            self._order.clear()
            self._of.clear()
        for one in held:
            one.hold.release()

    def _forget_lapsed(self) -> None:
        while self._order and self._order[0].until < time.monotonic():
            held = self._order.popleft()
            for name in tuple(held.names):
                self._forget(held, name)

    def _forget(self, held: _Held, name: str) -> None:
        held.names.discard(name)
        self._of[name].remove(held)
        if not self._of[name]:
            del self._of[name]
