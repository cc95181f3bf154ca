"""Says once that the pool cannot be reached, and once that it is back: not once a request."""

from __future__ import annotations

import logging
import threading
import time
from weakref import WeakSet

from kvstore.client import Client, KVStoreError, SessionEnded, Unavailable

log = logging.getLogger("vllm.moonpool")

AGAIN_SECONDS = 60.0  # how long other trouble of one kind stays unsaid


class Node:
    """What one engine process has said of one node. vLLM may run scheduler and worker in one, and
    each has a client, which finds the node anew by itself: it is back when all have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lost_to = WeakSet[Client]()
        self.said: dict[type, float] = {}


_NODES: dict[str, Node] = {}


class Health:
    """What one client finds its node to be. Safe to use from several threads."""

    def __init__(self, where: str, client: Client) -> None:
        self._where, self._client = where, client
        self._node = _NODES.setdefault(where, Node())

    def failed(self, error: KVStoreError) -> None:
        """A call failed."""
        if isinstance(error, Unavailable | SessionEnded):
            self._lost(str(error))
            return
        node = self._node
        with node.lock:
            now = time.monotonic()
            if now - node.said.get(type(error), -AGAIN_SECONDS) < AGAIN_SECONDS:
                return
            node.said[type(error)] = now
        log.warning("Moonpool: %s: %s", type(error).__name__, error)

    def well(self) -> None:
        """A call did not fail. Where the node went meanwhile, what it had is a miss by that."""
        node = self._node
        with node.lock:
            if self._client not in node.lost_to or not self._client.reachable:
                return
            node.lost_to.discard(self._client)
            back = not node.lost_to
        if back:
            log.warning("Moonpool: node %s answers again", self._where)

    def _lost(self, why: str) -> None:
        node = self._node
        with node.lock:
            known = bool(node.lost_to)
            node.lost_to.add(self._client)
        if not known:
            text = "Moonpool: node %s cannot be reached, so vLLM serves as without it: %s"
            log.warning(text, self._where, why)
