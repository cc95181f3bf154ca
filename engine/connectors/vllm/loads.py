"""Loading: each request's blocks into its pages, in a thread, verified before vLLM may see them.

A load that fails, or takes longer than computing would, says which pages are not good; vLLM
computes from the first of them (or fails the request, as it was told to). No load goes unanswered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from kvstore.client import Chain, Keyed, KVStoreError, Memory, Miss, Reader
from kvstore.client.later import later
from kvstore.client.writer import Event

from .caches import GroupCache
from .health import Health
from .loaded_adapters import LOADED
from .messages import Adapter, Load, Loaded, Part
from .trace import Trace
from .usable import window_start

log = logging.getLogger("vllm.moonpool")

FIRST_BYTES, BATCH_BYTES = 1 << 20, 64 << 20  # of one rank, between looks at the budget
QUICK_SHARE = 1 / 16  # of the budget: after a batch that took less, the next may be larger
FOLLOW_SECONDS = 0.002  # between looks for a followed writer's next blocks
# Prefills followed at once. They wait more than they load, maybe for one that never comes: they may
# not keep from loading what is stored.
FOLLOWS_MAX = 64
IN_VAIN = (Miss.FORGONE, Miss.QUARANTINED)  # what is followed does not come any more
DRAIN_SECONDS = 120.0


class Loads:
    """Loads under way and those that are done, for one rank."""

    def __init__(
        self,
        caches: tuple[GroupCache, ...],
        at_once: int,
        stall_seconds: float,
        health: Health,
        trace: Trace,
        beside: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._caches, self._stall_seconds = caches, stall_seconds
        self._health, self._trace, self._beside = health, trace, beside
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="moonpool-load")
        self._followers = ThreadPoolExecutor(FOLLOWS_MAX, thread_name_prefix="moonpool-follow")
        self._changed = threading.Condition()
        self._under_way = 0
        self._done: dict[str, Loaded] = {}
        self._bad_pages: set[int] = set()
        self._failed: set[str] = set()
        self._ending = False

    def start(self, load: Load) -> None:
        with self._changed:
            self._under_way += 1
        threads = self._followers if load.follow else self._threads
        asked, told = time.monotonic(), self._caches[0].told()
        if later(threads, lambda: self._run(load, asked, told)) is None:
            log.warning("Moonpool: no thread can be started to load by, tokens are computed")
            self._end(load, load.begin, 0.0)

    def finished(self, seconds: float) -> dict[str, Loaded]:
        """Loads that have ended since the last call; with none, waits a moment for the first."""
        with self._changed:
            if not self._done and self._under_way:
                self._changed.wait(seconds)
            done, self._done = self._done, {}
            return done

    def bad_pages(self) -> set[int]:
        with self._changed:
            bad, self._bad_pages = self._bad_pages, set()
            return bad

    def failed(self) -> set[str]:
        with self._changed:
            failed, self._failed = self._failed, set()
            return failed

    def drain(self) -> None:
        """End what is under way, with what it has. Nothing is written to any page when this
        returns; raises `TimeoutError` where that takes longer than any load may."""
        with self._changed:
            self._ending = True
            try:
                if not self._changed.wait_for(lambda: not self._under_way, DRAIN_SECONDS):
                    raise TimeoutError(f"a load still writes to pages after {DRAIN_SECONDS} s")
            finally:
                self._ending = False

    def close(self) -> None:
        self._ending = True
        for threads in (self._threads, self._followers):
            threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, load: Load, asked: float, told: Event | None) -> None:
        good, brought, stands = load.begin, 0, True
        try:
            if told is not None:
                told.synchronize()
            if stands := LOADED.stands(load.adapter):
                with self._beside():
                    came = [self._load(load, part, asked) for part in load.parts]
                brought = sum(one.blocks for one in came)
                stands = LOADED.stands(load.adapter)
                good = min(one.good for one in came) if stands else good
            self._health.well()
        except KVStoreError as error:
            self._health.failed(error)
        except Exception:
            # Whatever it is, the request must not wait for ever, nor may its pages be used.
            log.exception("Moonpool: a load failed unexpectedly, its tokens are computed")
        stale = None if stands else load.adapter
        self._end(load, good, time.monotonic() - asked, brought, stale)

    def _end(
        self, load: Load, good: int, seconds: float, brought: int = 0, stale: Adapter | None = None
    ) -> None:
        with self._changed:
            self._under_way -= 1
            tokens, wanted = good - load.begin, load.end - load.begin
            came = wanted * brought // sum(len(part.hashes) for part in load.parts)
            told = (seconds, came, bool(load.follow), stale)
            self._done[load.request] = Loaded(good, tokens, wanted, *told)
            if good < load.end:
                self._failed.add(load.request)
                size = self._caches[0].facts.page_tokens
                pages = load.parts[0].pages
                self._bad_pages.update(pages[good // size : -(-load.end // size)])
            self._changed.notify_all()

    def _load(self, load: Load, part: Part, asked: float) -> Came:
        cache = self._caches[part.group]
        window = cache.facts.window_tokens
        begin = max(load.begin, window_start(load.end, window)) if window else load.begin
        size = cache.client.space.layout.block_tokens
        assert part.first == begin // size and part.hashes, "the scheduler's blocks hold its tokens"
        edge = begin > part.first * size
        if edge and not self._load_edge(load, cache, part, begin):
            return Came(load.begin, 0)
        rest = replace(part, first=part.first + int(edge), hashes=part.hashes[int(edge) :])
        if not rest.hashes:
            return Came(load.end, int(edge))
        if window:
            per_page = cache.facts.page_tokens
            pages = part.pages[rest.first * size // per_page : -(-load.end // per_page)]
            found = cache.client.load_each(Keyed(rest.hashes, size), cache.memory(pages))
            return Came(load.end if all(found) else load.begin, int(edge) + sum(found))
        if load.follow:
            good = self._follow(load, cache, rest, cache.memory(rest.pages))
        else:
            good = self._batches(load, cache, rest, asked)
        return Came(good, -(-good // size) - part.first)

    def _batches(self, load: Load, cache: GroupCache, part: Part, asked: float) -> int:
        """What is stored, until the budget is used up."""
        layout, memory = cache.client.space.layout, cache.memory(part.pages)
        chain, at, end = (
            _chain(part, layout.block_tokens),
            part.first,
            part.first + len(part.hashes),
        )
        share = cache.fragment.layers * cache.fragment.heads / layout.strips
        budget, size = load.budget_seconds, FIRST_BYTES
        while at < end and not self._ending:
            began = time.monotonic()
            left = asked + budget - began if budget else self._stall_seconds
            if left <= 0:
                break
            count = max(1, int(size / (layout.payload_bytes * share))) if budget else end - at
            until = min(at + count, end)
            with cache.client.reader(chain.between(0, until), memory, first=at) as reader:
                reader.wait(min(left, self._stall_seconds))
                at += reader.blocks
            if at < until:
                break
            if time.monotonic() - began < QUICK_SHARE * budget:
                size = min(4 * size, BATCH_BYTES)
        return sum(chain.tokens[:at])

    def _follow(self, load: Load, cache: GroupCache, part: Part, memory: Memory) -> int:
        """Behind a writer that may not even have begun: give up when nothing new comes, and at once
        where it says that nothing will."""
        chain = _chain(part, cache.client.space.layout.block_tokens)
        at, moved = part.first, time.monotonic()
        while at < len(chain) and not self._ending:
            with cache.client.reader(
                chain, memory, first=at, writer_group=load.follow, writer_node=load.follow_at
            ) as reader:
                moved = self._watch(load, reader, moved)
                loaded, miss = reader.blocks, reader.miss
            at += loaded
            if not loaded:
                if miss in IN_VAIN or time.monotonic() - moved > self._stall_seconds:
                    break
                time.sleep(FOLLOW_SECONDS)
        return sum(chain.tokens[:at])

    def _watch(self, load: Load, reader: Reader, moved: float) -> float:
        """Load layers as they land; when the last of them did."""
        layers = 0
        while True:
            reader.wait(FOLLOW_SECONDS, layers + 1)
            now, over = time.monotonic(), reader.done
            if reader.layers > layers and not (over and not reader.blocks):
                layers, moved = reader.layers, now
                self._trace.event("loaded", load.request, layers=layers, name=load.follow)
            if over or self._ending or now - moved > self._stall_seconds:
                return moved

    def _load_edge(self, load: Load, cache: GroupCache, part: Part, begin: int) -> bool:
        """The first block where vLLM has its beginning already, in pages that others may share."""
        size, per_page = cache.client.space.layout.block_tokens, cache.facts.page_tokens
        count = size // per_page
        if len(part.hashes) == 1 and part.last_tokens < size:
            return False  # a short block: too little to be worth a way of its own
        scratch = cache.scratch(count)
        one = replace(part, first=0, hashes=part.hashes[:1], last_tokens=size)
        if load.follow:
            came = self._follow(load, cache, one, scratch.memory) == size
        else:
            came = all(cache.client.load_each(Keyed(one.hashes, size), scratch.memory))
        if not came:
            return False
        skip = (begin - part.first * size) // per_page
        first = part.first * count + skip
        scratch.copy_to(part.pages[first : part.first * count + count], skip)
        if (told := cache.told()) is not None:
            told.synchronize()  # vLLM computes on another stream, which waits for none of this
        return True


class Came(NamedTuple):
    """What came of one group."""

    good: int  # tokens, counted from the request's first
    blocks: int


def _chain(part: Part, size: int) -> Chain:
    """The part's blocks at their places in the request; those before are not looked at."""
    tokens = (size,) * (part.first + len(part.hashes) - 1) + (part.last_tokens,)
    return Chain(part.hashes[:1] * part.first + part.hashes, tokens, size)
