"""One thread that does all the work on one metadata file, and never keeps a caller past its time.

A call that finds the file locked is put aside and tried again every millisecond until its deadline;
calls that need no lock pass it. While anyone watches, the same thread looks whether the file has
changed and rings the watchers' bells: every few milliseconds while there are changes, less often
once there were none for a while, since that is most of a process's life and each look wakes a core.
While nobody watches, it sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from kvstore.errors import KVStoreError, Unavailable
from kvstore.metadata.ledger import Ledger
from kvstore.metadata.protocol import StoreClosed
from kvstore.metadata.sqlite_failure import Busy

T = TypeVar("T")

CALLS_MAX = 1_024  # calls waiting for one store: more means the disk does not keep up
# How soon another process's change is noticed: one that follows another, and one after some quiet.
POLL_S, POLL_QUIET_S = 0.005, 0.05
QUIET_S = 1.0  # without a change
RETRY_S = 0.001
OPEN_TIMES = 5  # as long as a call waits for the lock does who opens: else its process ends
GRACE_S = 0.5  # on top of the lock deadline, for the disk itself


class Bell:
    """Rung from the worker's thread, heard in the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # that loop is closed; nobody listens
            self._loop.call_soon_threadsafe(self._rung.set)

    def hush(self) -> None:
        self._rung.clear()

    async def heard(self, seconds: float) -> None:
        """Return when it rings, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()


@dataclass(frozen=True, slots=True)
class Call:
    act: Callable[[Ledger], Any]
    answer: Future[Any]
    deadline: float

    def attempt(self, ledger: Ledger) -> bool:
        """Do it now; False if the file is locked and there is time left to try again."""
        if self.answer.cancelled():
            return True
        try:
            result = self.act(ledger)
        except Busy as busy:
            if time.monotonic() < self.deadline:
                return False
            self.fail(Unavailable(f"{busy}, and was until the deadline; nothing was changed"))
        except Exception as error:
            self.fail(error)
        else:
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_result(result)
        return True

    def fail(self, error: Exception) -> None:
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


class Worker:
    """Starting it opens the file and raises what that raises."""

    def __init__(self, name: str, open_ledger: Callable[[], Ledger], busy_s: float) -> None:
        self._name = name
        self._busy_s, open_s = busy_s, OPEN_TIMES * busy_s
        # SimpleQueue waits at half the cost of Queue; call() bounds it.
        self._inbox: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._aside: deque[Call] = deque()  # found the file locked; the oldest is due first
        self._bells: frozenset[Bell] = frozenset()  # replaced, never changed: the thread reads it
        self._closing = threading.Event()
        self._moved = time.monotonic()  # when a change was last seen
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run,
            args=(open_ledger, open_s, opened),
            name=f"metadata {name}",
            daemon=True,
        )
        self._thread.start()
        try:
            opened.result(open_s + 2 * GRACE_S)
        except TimeoutError:
            self._closing.set()
            raise Unavailable(f"{name} could not be opened within {open_s} s") from None

    async def call(self, act: Callable[[Ledger], T]) -> T:
        if self._closing.is_set():
            raise StoreClosed(f"{self._name} was closed")
        if self._inbox.qsize() + len(self._aside) >= CALLS_MAX:
            raise Unavailable(f"{self._name}: {CALLS_MAX} calls are waiting", 100)
        answer: Future[T] = Future()
        self._inbox.put(Call(act, answer, time.monotonic() + self._busy_s))
        try:
            # Not wait_for: in Python 3.11 it loses a cancel that meets the answer.
            async with asyncio.timeout(self._busy_s + GRACE_S):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise Unavailable(
                f"{self._name} did not answer within {self._busy_s + GRACE_S} s; a change may or "
                "may not have been made"
            ) from None

    @contextlib.contextmanager
    def ringing(self) -> Iterator[Bell]:
        """A bell that rings at every change of the revision from now on."""
        bell = Bell()
        self._bells |= {bell}
        try:
            yield bell
        finally:
            self._bells -= {bell}

    async def close(self) -> None:
        self._closing.set()
        self._inbox.put(None)  # wakes it
        await asyncio.to_thread(self._thread.join, self._busy_s + GRACE_S)

    def _run(self, open_ledger: Callable[[], Ledger], open_s: float, opened: Future[None]) -> None:
        try:
            ledger = self._open(open_ledger, open_s)
        except Exception as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        try:
            while not self._closing.is_set():
                self._turn(ledger)
        finally:
            self._closing.set()
            self._dismiss()
            ledger.close()

    def _open(self, open_ledger: Callable[[], Ledger], open_s: float) -> Ledger:
        deadline = time.monotonic() + open_s
        while True:
            try:
                return open_ledger()
            except Busy:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_S)

    def _turn(self, ledger: Ledger) -> None:
        call = self._next()
        while self._aside and self._aside[0].attempt(ledger):
            self._aside.popleft()
        if call is not None and not call.attempt(ledger):
            self._aside.append(call)
        if self._bells:
            self._look(ledger)

    def _next(self) -> Call | None:
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=self._patience())
        return None

    def _patience(self) -> float | None:
        if self._aside:
            return RETRY_S
        if not self._bells:
            return None
        return POLL_S if time.monotonic() - self._moved < QUIET_S else POLL_QUIET_S

    def _look(self, ledger: Ledger) -> None:
        try:
            moved = ledger.moved()
        except KVStoreError:
            moved = True  # every watcher meets the error in its own next call
        if moved:
            self._moved = time.monotonic()
            for bell in self._bells:
                bell.ring()

    def _dismiss(self) -> None:
        """No call is left without an answer, no watcher asleep."""
        for call in self._aside:
            call.fail(StoreClosed(f"{self._name} was closed"))
        with contextlib.suppress(queue.Empty):
            while True:
                if (late := self._inbox.get_nowait()) is not None:
                    late.fail(StoreClosed(f"{self._name} was closed"))
        for bell in self._bells:
            bell.ring()
