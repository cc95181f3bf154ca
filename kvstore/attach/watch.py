"""The reading of a fleet for so long: events as they come, counters every second.

Every server is listened to by a thread of its own, and what comes is taken one at a time. Servers
that do not answer now and then are asked again; one that never does is an error at the start.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from kvstore.attach import scrape
from kvstore.attach.fleet import Fleet
from kvstore.attach.kinds import VLLM
from kvstore.attach.prefill import PrefillTimes
from kvstore.attach.scrape import Counted, Page
from kvstore.client.kv_events.messages import Event, Messages
from kvstore.client.kv_events.subscription import Source, Subscription
from kvstore.errors import Unavailable

log = logging.getLogger(__name__)

SCRAPE_SECONDS = 1.0
# What a step computed is published at once, and counted by the process before it a little later.
SETTLE_SECONDS = 0.5
_AT_ONCE = 32  # servers that are asked for their counters at a time


@dataclass(frozen=True, slots=True)
class Engine:
    """Where one server is: its address, and where it publishes."""

    url: str
    source: Source


class Watch:
    """Of these servers. What it knows is for whoever asks between two calls of `look`."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self.fleet = Fleet([VLLM] * len(engines))  # until they have said what they are
        self.counted = [Counted() for _ in engines]
        self.prefill = PrefillTimes(len(engines))
        self.running = [0] * len(engines)  # at the start, and the end
        self.running_first = 0
        self.failed = 0  # answers that did not come
        self.passed_over: Counter[str] = Counter()  # events that tell nothing here, by the reason
        self.seconds = 0.0
        self._messages = [Messages() for _ in engines]
        # By each engine's clock: when it made what was taken last, and last before a loss. What it
        # says again after that was taken; of a process that took its place all is newer.
        self._taken = [-math.inf] * len(engines)
        self._known = [-math.inf] * len(engines)
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._began = 0.0
        self._over = False

    def start(self) -> None:
        """Begin to count. Raises Unavailable where a server cannot be read."""
        self._threads = self._stack.enter_context(ThreadPoolExecutor(_AT_ONCE))
        self.fleet = Fleet([page.kind for page in self._pages()])
        listening = [self._listen(at) for at in range(len(self.engines))]
        for engine, one in zip(self.engines, listening, strict=True):
            one.caught_up.wait()  # all at the same time, and none for ever
            if one.error is not None:
                source = engine.source.endpoint
                raise Unavailable(f"the KV events of {source} cannot be heard: {one.error}")
        pages = self._pages()
        with self._lock:
            self.fleet.begin()
            self.passed_over.clear()
            for at, page in enumerate(pages):
                self.counted[at].begin(page)
                self.running[at] = page.running
        self.running_first = sum(self.running)
        self._began = time.monotonic()
        names = ", ".join(sorted({page.kind.name for page in pages}))
        log.info(
            "counting: %d servers (%s), %d requests run", len(pages), names, self.running_first
        )

    def look(self, seconds: float, shown: Callable[[], None]) -> None:
        """Go on reading until so many seconds from the start are over."""
        end = self._began + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(SCRAPE_SECONDS, left))
            self._scrape()
            shown()

    def stop(self) -> None:
        """No more counts; what was seen is as it is."""
        if self._began:
            time.sleep(SETTLE_SECONDS)
            self._scrape()
            self.seconds = time.monotonic() - self._began
        with self._lock:
            self._over = True
        self._stack.close()

    def _pages(self) -> list[Page]:
        return list(self._threads.map(scrape.read, [one.url for one in self.engines]))

    def _listen(self, at: int) -> Subscription:
        one = Subscription(
            self.engines[at].source,
            self._messages[at],
            partial(self._take, at),
            partial(self._lost, at),
        )
        self._stack.enter_context(closing(one))
        return one

    def _take(self, at: int, events: list[Event]) -> None:
        with self._lock:
            if self._over:
                return
            messages = self._messages[at]
            made = messages.made
            if not made or made > self._known[at]:  # one that says no time is taken at its word
                self.fleet.take(at, time.monotonic(), events)
                self._taken[at] = made
                self.passed_over += messages.passed_over
                self.fleet.seen[at].unread += messages.unread
            else:
                self.fleet.recall(at, events)
            messages.passed_over.clear()  # of each batch, and counted with it

    def _lost(self, at: int) -> None:
        with self._lock:
            if not self._over:
                self.fleet.lost(at)
                self._known[at] = max(self._known[at], self._taken[at])

    def _scrape(self) -> None:
        for at, page in enumerate(self._threads.map(_page, [one.url for one in self.engines])):
            if page is None:
                self.failed += 1
                continue
            rose = self.counted[at].take(page)
            self.prefill.observe(at, rose.prefills, rose.prefilled, rose.prefill_seconds)
            self.running[at] = page.running


def _page(url: str) -> Page | None:
    try:
        return scrape.read(url)
    except Unavailable:
        return None
