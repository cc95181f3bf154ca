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
        # LMCache's hashes, oldest first; None is before a prompt's first.
        self._before: OrderedDict[Any, Any] = OrderedDict()

    def tell(self, keys: Sequence[CacheEngineKey]) -> None:
        """These are chunks of one prompt, one behind the other."""
        with self._lock:
            self._tell(keys)

    def begin(self, keys: Sequence[CacheEngineKey]) -> None:
        """These are chunks of one prompt, from its first on."""
        with self._lock:
            for first in keys[:1]:
                self._before[first.chunk_hash] = None
                self._before.move_to_end(first.chunk_hash)
            self._tell(keys)

    def before(self, key: CacheEngineKey) -> str:
        """What the chunk before it is called; empty where it is a prompt's first, or not known."""
        found = self.hash_before(key)
        return "" if found is None else replace(key, chunk_hash=found).to_string()

    def hash_before(self, key: CacheEngineKey) -> Any:
        with self._lock:
            return self._before.get(key.chunk_hash)

    def line(self, key: CacheEngineKey) -> tuple[list[Any], bool]:
        """The hashes before a chunk, last first, and whether they are known to the prompt's first.

        A chunk named twice ends it: two prompts have one hash.
        """
        found: dict[Any, None] = {}
        at = key.chunk_hash
        with self._lock:
            while at in self._before:
                at = self._before[at]
                if at is None or at in found:
                    return list(found), at is None
                found[at] = None
        return list(found), False

    def hear(self, storage: Any) -> None:
        """Be told of lookups at another storage of LMCache's, which is asked before this one."""
        contains, contains_async = storage.batched_contains, storage.batched_async_contains

        def batched_contains(keys: list[CacheEngineKey], pin: bool = False) -> Any:
            tell = self.begin if pin else self.tell  # a lookup pins, and names a whole prompt
            tell(keys)
            return contains(keys, pin)

        async def batched_async_contains(
            lookup_id: str, keys: list[CacheEngineKey], *more: Any, **named: Any
        ) -> Any:
            self.begin(keys)
            return await contains_async(lookup_id, keys, *more, **named)

        storage.batched_contains = batched_contains
        storage.batched_async_contains = batched_async_contains

    def _tell(self, keys: Sequence[CacheEngineKey]) -> None:
        for first, second in pairwise(keys):
            self._before[second.chunk_hash] = first.chunk_hash
            self._before.move_to_end(second.chunk_hash)
        while len(self._before) > self._most:
            self._before.popitem(last=False)
