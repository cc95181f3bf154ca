"""Loading: each request's blocks into its pages, in a thread, verified before vLLM may see them.

A load that fails, or that is late, says which pages are not good; vLLM recomputes from the first of
them (or fails the request, as it was told to). A load is never left unanswered.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from kvstore.client import Chain, Keyed, KVStoreError

from .caches import GroupCache
from .messages import Load, Part
from .usable import window_start

log = logging.getLogger("vllm.moonpool")


class Loads:
    """Loads under way and those that are done, for one rank."""

    def __init__(self, caches: tuple[GroupCache, ...], at_once: int, seconds: float) -> None:
        self._caches, self._seconds = caches, seconds
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="moonpool-load")
        self._changed = threading.Condition()
        self._under_way = 0
        self._done: dict[str, int] = {}  # request -> good tokens from its first on
        self._bad_pages: set[int] = set()
        self._failed: set[str] = set()

    def start(self, load: Load) -> None:
        with self._changed:
            self._under_way += 1
        self._threads.submit(self._run, load)

    def finished(self, seconds: float) -> dict[str, int]:
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

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, load: Load) -> None:
        good = load.begin
        try:
            good = min(self._load(load, part) for part in load.parts)
        except KVStoreError as error:
            log.warning("Moonpool: a load failed, its tokens are recomputed: %s", error)
        except Exception:
            # Whatever it is, the request must not wait for ever, nor may its pages be used.
            log.exception("Moonpool: a load failed unexpectedly, its tokens are recomputed")
        with self._changed:
            self._under_way -= 1
            self._done[load.request] = good
            if good < load.end:
                self._failed.add(load.request)
                size = self._caches[0].facts.page_tokens
                pages = load.parts[0].pages
                self._bad_pages.update(pages[good // size : -(-load.end // size)])
            self._changed.notify_all()

    def _load(self, load: Load, part: Part) -> int:
        """Good tokens of one group, counted from the request's first."""
        cache = self._caches[part.group]
        window = cache.facts.window_tokens
        begin = max(load.begin, window_start(load.end, window)) if window else load.begin
        size = cache.client.space.layout.block_tokens
        assert part.first == begin // size and part.hashes, "the scheduler's blocks hold its tokens"
        edge = begin > part.first * size
        if edge and not self._load_edge(cache, part, begin):
            return load.begin
        rest = part.hashes[1:] if edge else part.hashes
        first = part.first + int(edge)
        if not rest:
            return load.end
        if window:
            per_page = cache.facts.page_tokens
            pages = part.pages[first * size // per_page : -(-load.end // per_page)]
            found = cache.client.load_each(Keyed(rest, size), cache.memory(pages))
            return load.end if all(found) else load.begin
        # The reader counts blocks from the request's first: those before are not looked at.
        blocks = Chain(part.hashes[:1] * first + rest, (size,) * (first + len(rest)), size)
        with cache.client.reader(blocks, cache.memory(part.pages), first=first) as reader:
            reader.wait(self._seconds)
            return first * size + reader.tokens

    def _load_edge(self, cache: GroupCache, part: Part, begin: int) -> bool:
        """The first block where vLLM has its beginning already, in pages that others may share."""
        size, per_page = cache.client.space.layout.block_tokens, cache.facts.page_tokens
        count = size // per_page
        scratch = cache.scratch(count)
        if not all(cache.client.load_each(Keyed(part.hashes[:1], size), scratch.memory)):
            return False
        skip = (begin - part.first * size) // per_page
        first = part.first * count + skip
        scratch.copy_to(part.pages[first : part.first * count + count], skip)
        return True
