"""Which chunks are kept: none whose KV may have been computed over what a load left out.

vLLM takes what a lookup promised for loaded. Where a load then comes back short, the step goes on
all the same, over blocks that hold anything, and LMCache stores what came of it; only then does
vLLM hear of it, and compute it again. Those chunks have the right names and the wrong KV.

    prompt   [0 .. m)   [m]    [m .. n)   [n ..]
    chunks   loaded     lost   promised   computed over them: in doubt
    another  the same  | in vLLM's blocks for a part of [m], and then its own: in doubt too

So in doubt is all that comes behind the chunk before the lost one, in every prompt, for as long as
a step may be under way. That it is submitted again says nothing: of another prompt of the same
step, whose lookup found less, it may be the lost chunk itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lmcache.utils import CacheEngineKey

from .lost import EVERYTHING, LOST_SECONDS, Lost, name_of
from .order import Order


class Trust:
    """What is in doubt on one rank. Safe to use from several threads."""

    def __init__(
        self, order: Order, lost: Lost, tell: Callable[[str], None], elsewhere: bool
    ) -> None:
        self._order, self._lost, self._tell = order, lost, tell
        self._elsewhere = elsewhere  # ranks on other hosts, whose loads nobody hears of here

    def short(self, key: CacheEngineKey) -> None:
        """This is the first chunk that was promised and is not there."""
        self._tell(
            "a chunk that was looked up could not be loaded: what the engine computes behind it "
            f"within {LOST_SECONDS} s is not kept"
        )
        self._doubt(key)

    def loaded(self, keys: Sequence[CacheEngineKey], found: Sequence[Any]) -> None:
        """A load that vLLM waits for ended so."""
        lost = next((key for key, one in zip(keys, found, strict=True) if one is None), None)
        if lost is not None:
            self.short(lost)
        elif self._elsewhere and keys:
            self._tell(
                "the engine's ranks are on several hosts, where loads may fail unheard: what it "
                f"computes behind a load within {LOST_SECONDS} s is not kept"
            )
            self._doubt(keys[0])

    def count(self, keys: Sequence[CacheEngineKey]) -> int:
        """How many leading chunks of one call of a prompt are not in doubt."""
        marked = self._lost.marked()
        if not marked or not keys:
            return len(keys)
        before, whole = self._order.line(keys[0])
        if EVERYTHING in marked or not whole or marked & set(map(name_of, before)):
            return 0
        names = [name_of(key.chunk_hash) for key in keys]
        return next((at + 1 for at, one in enumerate(names) if one in marked), len(keys))

    def guard(self, memory: Any) -> None:
        """LMCache's own memory: hear of its loads, and keep from it, too, what is in doubt."""
        get, put = memory.batched_get_blocking, memory.batched_submit_put_task

        def batched_get_blocking(keys: list[CacheEngineKey]) -> Any:
            found = get(keys)
            self.loaded(keys, found)
            return found

        def batched_submit_put_task(
            keys: Sequence[CacheEngineKey], objs: list[Any], *more: Any, **named: Any
        ) -> Any:
            count = self.count(keys)
            return put(keys[:count], objs[:count], *more, **named)

        memory.batched_get_blocking = batched_get_blocking
        memory.batched_submit_put_task = batched_submit_put_task

    def _doubt(self, key: CacheEngineKey) -> None:
        before = self._order.hash_before(key)
        self._lost.mark(EVERYTHING if before is None else name_of(before))
