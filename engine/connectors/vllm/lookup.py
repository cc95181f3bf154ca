"""Asking the pool what it has of a request, beside the scheduler's own thread.

The scheduler never waits on a socket for longer than it says: the calls are made by a thread here,
and an answer that is late is asked for again at the next scheduling step.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kvstore.client import Chain, Client, Hold, KVStoreError, Miss
from kvstore.client.later import later

from .health import Health
from .usable import Window, usable_tokens, window_start

log = logging.getLogger("vllm.moonpool")

FRESH_SECONDS = 2.0  # after this an answer is asked for anew: blocks come and go
HOLD_MS = 20_000  # how long found blocks are kept for the worker; longer than an answer is used


@dataclass(frozen=True, slots=True)
class Found:
    """What the pool has of a request's blocks."""

    chain_blocks: int
    windows: tuple[Window, ...]
    miss: Miss | None
    tokens: int = 0  # that can be loaded: up to there every group has what it needs
    holds: tuple[tuple[int, Hold], ...] = ()  # what is kept of a group, from which block on

    @property
    def held_blocks(self) -> int:
        """Leading blocks that need not be stored: every group has them."""
        held = self.chain_blocks
        for window in self.windows:
            missing = (~window.present[:held]).nonzero()[0]
            held = int(missing[0]) if len(missing) else held
        return held

    @property
    def first(self) -> int:
        """The first block that is loaded: where all groups see a window, where that begins."""
        return min((at for at, _ in self.holds), default=0)

    def origins(self, first: int, last: int) -> frozenset[int]:
        """What computed those of blocks [first, last) that are loaded, where `last` ends `tokens`:
        of a window, what it covers then."""
        return frozenset(
            one
            for at, hold in self.holds
            for one in hold.origins[max(0, first - at) : max(0, last - at)]
        )


NOTHING = Found(0, (), Miss.UNREACHABLE)


class Lookup:
    """One question about one request, and its answer once there is one."""

    def __init__(self, future: Future[Found]) -> None:
        self._future = future
        self._answered = math.inf
        future.add_done_callback(self._note)

    @property
    def fresh(self) -> bool:
        """Whether to wait for it, or use it. One that waits its turn is not asked again: it would
        wait behind all others anew, and where these are many never have an answer."""
        return time.monotonic() - self._answered < FRESH_SECONDS

    def result(self, seconds: float) -> Found | None:
        """The answer, or None if it is not there within `seconds`."""
        try:
            return self._future.result(seconds)
        except TimeoutError:
            return None

    def drop(self, lookups: Lookups) -> None:
        """Nobody needs the answer any more; what it holds is let go, by the thread."""
        if not self._future.cancel():
            self._future.add_done_callback(lambda future: lookups.later(lambda: _release(future)))

    def _note(self, _: Future[Found]) -> None:
        self._answered = time.monotonic()


class Lookups:
    """Asks for one engine, in one thread, so that a slow node delays answers and nothing else."""

    def __init__(
        self, clients: tuple[Client, ...], windows: tuple[int, ...], align: int, health: Health
    ) -> None:
        """What is found ends on a multiple of `align` tokens."""
        self._clients, self._windows, self._health = clients, windows, health
        self._align = align
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-lookup")
        self._counting = threading.Lock()
        self._used = (0, 0)  # tokens that were asked for, and of these found: not told yet
        self._telling = False  # the thread will

    def ask(self, chains: tuple[Chain, ...], most: int) -> Lookup:
        """What there is of these, and of that `most` tokens at most to be loaded."""
        found = later(self._thread, lambda: self._find(chains, most))
        if found is None:
            found = Future()
            found.set_result(NOTHING)
        return Lookup(found)

    def used(self, query_tokens: int, hit_tokens: int) -> None:
        """Have the node count what this engine made of what it holds: what comes together is told
        by one call."""
        with self._counting:
            queries, hits = self._used
            self._used = (queries + query_tokens, hits + hit_tokens)
            if not self._telling:
                self._telling = self.later(self._tell_used)

    def later(self, call: Callable[[], object]) -> bool:
        """Make some other call of this side's, after those that were asked before. False: never."""

        def made() -> None:
            try:
                call()
            except KVStoreError as error:
                self._health.failed(error)

        # Where never: what is held ends by its time, or with the session.
        return later(self._thread, made) is not None

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _tell_used(self) -> None:
        with self._counting:
            (queries, hits), self._used, self._telling = self._used, (0, 0), False
        self._clients[0].used(queries, hits)

    def _find(self, chains: tuple[Chain, ...], most: int) -> Found:
        blocks, miss, size = len(chains[0]), None, chains[0].block_tokens
        groups = list(zip(self._clients, self._windows, chains, strict=True))
        windows: list[Window] = []
        holds: list[tuple[int, Hold]] = []
        try:
            for client, window, chain in groups:
                if not len(chain):
                    continue
                if window:
                    windows.append(Window.of(window, client.exists_each(chain)))
                    client.connection.link()  # raises where none is there, since the node is not
                    continue
                hold = client.hold(chain, pin_ms=HOLD_MS)
                holds.append((0, hold))
                if hold.blocks < blocks:
                    blocks, miss = hold.blocks, hold.miss
            tokens = usable_tokens(blocks, windows, size, self._align, most)
            for client, window, chain in groups:
                if not window or not tokens:
                    continue
                # Only what a hit loads: to hold a block its node may have to fetch it.
                first = window_start(tokens, window) // size
                hold = client.hold(chain.between(first, tokens // size), pin_ms=HOLD_MS)
                holds.append((first, hold))
                if hold.miss is not None:  # it has gone since, or is late
                    tokens, miss = 0, hold.miss
        except Exception as error:
            # Whatever it is, vLLM's scheduler takes the answer, and would end by what it raised.
            if isinstance(error, KVStoreError):
                self._health.failed(error)
            else:
                log.exception("Moonpool: a lookup failed unexpectedly, its request is computed")
            for _, hold in holds:
                hold.release()
            return NOTHING
        self._health.well()
        return Found(blocks, tuple(windows), miss, tokens, tuple(holds))


def _release(future: Future[Found]) -> None:
    for _, hold in future.result().holds:
        hold.release()
