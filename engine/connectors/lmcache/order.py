"""Which chunk comes before which: lookups say it, and calls to store begin where the rest is known.

A lookup names a prompt's chunks one behind the other, to the storage that is asked first; the next
one hears of those alone that were not found there. A chunk's hash covers all before it, so what was
said of it once is so for ever.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lmcache.utils import CacheEngineKey

KNOWN = 65_536  # chunks: of 256 tokens each, as LMCache cuts them, 16 M tokens


class Order:
    """The chunk before each of those that were named last. Safe to use from several threads."""

    def __init__(self, most: int = KNOWN) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._before: OrderedDict[Any, Any] = OrderedDict()  # LMCache's hashes, oldest first

    def tell(self, keys: Sequence[CacheEngineKey]) -> None:
        """These are chunks of one prompt, one behind the other."""
        with self._lock:
            for first, second in pairwise(keys):
                self._before[second.chunk_hash] = first.chunk_hash
                self._before.move_to_end(second.chunk_hash)
            while len(self._before) > self._most:
                self._before.popitem(last=False)

    def before(self, key: CacheEngineKey) -> str:
        """What the chunk before it is called; empty where it is a prompt's first, or not known."""
        with self._lock:
            found = self._before.get(key.chunk_hash)
        return "" if found is None else replace(key, chunk_hash=found).to_string()

    def hear(self, storage: Any) -> None:
        """Be told of lookups at another storage of LMCache's, which is asked before this one."""
        contains, contains_async = storage.batched_contains, storage.batched_async_contains

        def batched_contains(keys: list[CacheEngineKey], *more: Any, **named: Any) -> Any:
            self.tell(keys)
            return contains(keys, *more, **named)

        async def batched_async_contains(
            lookup_id: str, keys: list[CacheEngineKey], *more: Any, **named: Any
        ) -> Any:
            self.tell(keys)
            return await contains_async(lookup_id, keys, *more, **named)

        storage.batched_contains = batched_contains
        storage.batched_async_contains = batched_async_contains
