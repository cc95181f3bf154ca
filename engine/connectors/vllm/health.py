"""Says once that the pool cannot be reached, and once that it is back: not once a request."""

from __future__ import annotations

import logging
import threading
import time

from kvstore.client import KVStoreError, Lapsed, Unavailable

log = logging.getLogger("vllm.moonpool")

AGAIN_SECONDS = 60.0  # how long other trouble of one kind stays unsaid


class Health:
    """What one engine process has said of one node. Safe to use from several threads."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._lost = False
        self._said: dict[type, float] = {}

    def failed(self, error: KVStoreError) -> None:
        """A call failed."""
        if isinstance(error, Unavailable | Lapsed):
            self.lost(str(error))
            return
        with self._lock:
            now = time.monotonic()
            if now - self._said.get(type(error), -AGAIN_SECONDS) < AGAIN_SECONDS:
                return
            self._said[type(error)] = now
        log.warning("Moonpool: %s: %s", type(error).__name__, error)

    def lost(self, why: str) -> None:
        with self._lock:
            if self._lost:
                return
            self._lost = True
        log.warning(
            "Moonpool: node %s cannot be reached, so vLLM serves as without it: %s", self._node, why
        )

    def well(self) -> None:
        """A call was answered."""
        if not self._lost:
            return
        with self._lock:
            self._lost = False
        log.warning("Moonpool: node %s answers again", self._node)


_OF_NODE: dict[str, Health] = {}


def health_of(node: str) -> Health:
    """The one of this process: vLLM may run scheduler and worker in the same one."""
    return _OF_NODE.setdefault(node, Health(node))
