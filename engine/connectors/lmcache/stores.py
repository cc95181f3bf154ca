"""Storing beside the engine: chunks wait their turn, so many and no more, and go in order.

A chunk that waits stays in LMCache's CPU memory by a reference of ours, so `end` has to come before
that memory goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryObj

from kvstore.client.later import later

from .node import Node
from .order import Order

log = init_logger(__name__)

Told = Callable[[CacheEngineKey], None] | None


class Stores:
    """The chunks of one rank on their way to the pool. Safe to use from several threads."""

    def __init__(self, node: Node, order: Order, pending_max: int) -> None:
        self._node, self._order, self._pending_max = node, order, pending_max
        self._lock = threading.Lock()
        self._pending: set[CacheEngineKey] = set()
        self._dropping = False
        self._ended = False
        # One: the chunks of a prefix are sealed in their order, whoever dies meanwhile.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-store")

    def __contains__(self, key: CacheEngineKey) -> bool:
        with self._lock:
            return key in self._pending

    def submit(
        self, keys: Sequence[CacheEngineKey], chunks: Sequence[MemoryObj], told: Told
    ) -> Future[None] | None:
        """Store chunks later; `told` is called with the key of each that then is in the pool."""
        with self._lock:
            if self._ended:
                return None
            taken = self._take(keys, chunks)
            if not taken:
                return None
            # Under the lock, so that batches run in the order in which they were taken.
            storing = later(self._thread, lambda: self._store(taken, told))
        if storing is None:
            self._node.tell("no thread can be started: chunks are not stored")
            self._let_go(taken)
        return storing

    def end(self) -> None:
        """Take no more, drop what waits, and wait for the one under way. May be called twice."""
        with self._lock:
            self._ended = True
        self._thread.shutdown(wait=True)

    def _take(
        self, keys: Sequence[CacheEngineKey], chunks: Sequence[MemoryObj]
    ) -> list[tuple[CacheEngineKey, MemoryObj]]:
        taken, full = [], False
        for key, chunk in zip(keys, chunks, strict=True):
            if key in self._pending:
                continue
            full = len(self._pending) >= self._pending_max
            if full:
                break
            chunk.ref_count_up()
            self._pending.add(key)
            taken.append((key, chunk))
        if full and not self._dropping:
            log.warning(
                "Moonpool: %d chunks wait to be stored, more are dropped", self._pending_max
            )
        self._dropping = full
        return taken

    def _store(self, taken: list[tuple[CacheEngineKey, MemoryObj]], told: Told) -> None:
        keys = [key for key, _ in taken]
        stored = [False] * len(taken)
        try:
            if not self._ended:
                stored = self._node.store(
                    [key.to_string() for key in keys],
                    self._order.before(keys[0]),
                    [chunk for _, chunk in taken],
                )
        except Exception:
            log.exception("Moonpool: a bug, and chunks are not stored; please report it")
        finally:
            self._let_go(taken)
        for key, good in zip(keys, stored, strict=True):
            if good and told is not None:
                try:
                    told(key)
                except Exception as error:  # LMCache's own code: it says what it does with it
                    log.warning("on_complete_callback failed for key %s: %s", key, error)

    def _let_go(self, taken: list[tuple[CacheEngineKey, MemoryObj]]) -> None:
        for _, chunk in taken:
            chunk.ref_count_down()
        with self._lock:
            self._pending.difference_update(key for key, _ in taken)
