"""Requests on their way: a thread each, for the dispatcher blocks it, and no more than so many.

What happens to them comes to the event loop. A caller that leaves ends the calls that are made for
its requests, at whatever stage they are; each keeps its place until its thread has ended. No client
gets all places: see `kvstore.core.turns`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeAlias

from kvstore import traces
from kvstore.core.turns import Places
from kvstore.errors import Broken, Draining, KVStoreError, Overloaded, Unavailable
from kvstore.gateway.caller import Caller, CallerLeft
from kvstore.gateway.counted import count, how
from kvstore.gateway.http.keys import Whose
from kvstore.gateway.http.refusal import BadField
from kvstore.gateway.prefixes import Prefixes
from kvstore.gateway.recent import Recent
from kvstore.gateway.request import Outcome, Request, Told
from kvstore.limits import SERVE_LOGPROBS_HELD_MAX
from kvstore.logprobs import Logprobs
from kvstore.telemetry import Telemetry

log = logging.getLogger(__name__)

RETRY_MS = 1_000
# A token and its logprobs, or that its request is done.
Event: TypeAlias = tuple[int, Logprobs | None] | Outcome


class Runner(Protocol):
    """Whoever sends requests through engines: see `kvstore.gateway.dispatch.Dispatcher`."""

    def run(
        self, request: Request, told: Told, caller: Caller | None, outcome: Outcome
    ) -> Outcome: ...


class Job:
    """The requests of one call."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event | KVStoreError]] = asyncio.Queue()
        self._left = False
        self._failed: KVStoreError | None = None  # by which one of them did
        self._callers: list[Caller] = []  # of each request

    def caller(self) -> Caller:
        """Of one more request."""
        self._callers.append(Caller())
        return self._callers[-1]

    def enough(self, index: int) -> None:
        """This request is whole as it is; what came of it comes."""
        self._callers[index].enough()

    def end(self) -> None:
        """Nobody waits for what still runs of it."""
        for one in self._callers:
            one.leave()

    async def events(self, count: int) -> AsyncIterator[tuple[int, Event]]:
        """Of each of `count` requests its tokens, then what came of it. Raises what the first one
        fails by."""
        while count:
            index, event = await self._events.get()
            if isinstance(event, KVStoreError):
                self._failed = event
                raise event
            count -= isinstance(event, Outcome)
            yield index, event

    def leave(self, why: KVStoreError) -> None:
        """Whoever reads its events is told why."""
        if not self._left:
            self._left = True
            self._events.put_nowait((0, why))

    def how_ended(self, end: Outcome | KVStoreError) -> Outcome | KVStoreError:
        """Of one of them: nobody left those that are ended since another failed."""
        ended = isinstance(end, CallerLeft) and not self._left
        return self._failed if ended and self._failed is not None else end

    def tell(self, index: int, event: Event | KVStoreError) -> None:
        """From any thread. A loop that ended has nobody to be told."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.hear, index, event)

    def hear(self, index: int, event: Event | KVStoreError) -> None:
        """The same in the event loop's thread."""
        self._events.put_nowait((index, event))


class Work:
    """All jobs of one gateway. Its methods are for the event loop's thread."""

    def __init__(self, runner: Runner, places: int, telemetry: Telemetry) -> None:
        self._runner, self._places = runner, Places(places)
        self._logprobs = Places(SERVE_LOGPROBS_HELD_MAX)
        self._telemetry, self.recent = telemetry, Recent()
        self.prefixes = Prefixes()
        telemetry.look_up("open_requests", lambda: float(places - self._places.free))
        self._jobs: set[Job] = set()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def place(self, whose: Whose) -> Iterator[None]:
        """One, for a call that is being read. Raises `Overloaded` and `Draining`."""
        self._take(whose, 1)
        try:
            yield
        finally:
            self._give(whose.client)

    @contextmanager
    def running(self, whose: Whose, requests: Sequence[Request]) -> Iterator[Job]:
        """They run within it, and whatever of them still does at its end is left. Raises as
        `place` does, and `BadField` where they are more than may ever run at once."""
        with self._logprobs_of(whose, requests):
            self._take(whose, len(requests))
            job = Job()
            self._jobs.add(job)
            try:
                self._begin(job, requests)
                yield job
            finally:
                job.end()
                self._jobs.discard(job)

    @property
    def draining(self) -> bool:
        return self._draining

    def close(self) -> None:
        """Nobody is let in any more."""
        self._draining = True

    async def idle(self) -> None:
        """Returns once nothing is on its way."""
        await self._idle.wait()

    def abandon(self) -> None:
        """Whoever still waits is told that the answer does not come."""
        for job in self._jobs:
            job.leave(Unavailable("the gateway stopped before the answer was whole"))

    def _begin(self, job: Job, requests: Sequence[Request]) -> None:
        for index, request in enumerate(requests):
            given = (job, index, request, job.caller())
            thread = threading.Thread(target=self._run, args=given, name=request.id, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # none can be had: it is better in a while
                for one in requests[index:]:  # those that run give theirs back by themselves
                    self._give(one.client)
                text = "the gateway has no thread for it now"
                raise self._refused(len(requests) - index, text) from error

    def _run(self, job: Job, index: int, request: Request, caller: Caller) -> None:
        def told(token: int, logprobs: Logprobs | None) -> None:
            caller.check()
            job.tell(index, (token, logprobs))

        end: Outcome | KVStoreError
        came = Outcome()  # also of what is not whole in the end
        try:
            with traces.root("request", request.trace, prompt_tokens=len(request.prompt)) as span:
                end = self._runner.run(request, told, caller, came)
                traces.tell(span, output_tokens=len(end.tokens))
                if not end.untold:
                    traces.tell(span, cached_tokens=end.pool_tokens)
        except KVStoreError as error:
            end = error
            if how(error) == "failed":
                log.warning("request %s failed: %s", request.id, error)
        except Exception:
            log.exception("request %s failed", request.id)
            end = Broken("the gateway failed this request")
        with suppress(RuntimeError):
            job.loop.call_soon_threadsafe(self._over, job, index, request, end, came)

    def _over(
        self, job: Job, index: int, request: Request, end: Outcome | KVStoreError, came: Outcome
    ) -> None:
        """It is counted and its place is free before its caller hears: one that asks one by one has
        never more than one."""
        try:
            ended = job.how_ended(end)
            count(self._telemetry, len(request.prompt), ended)
            self.recent.add(request, how(ended), end if isinstance(end, Outcome) else came)
            if isinstance(end, Outcome):
                self.prefixes.add(end.blocks, end.block_tokens, time.monotonic())
        finally:  # whatever becomes of the figures
            self._give(request.client)
            job.hear(index, end)

    @contextmanager
    def _logprobs_of(self, whose: Whose, requests: Sequence[Request]) -> Iterator[None]:
        """There is room for as many as their answers may come with. They are held until all of an
        answer has come, or until its caller has read it."""
        most = sum(one.logprobs_max for one in requests)
        if not most:
            yield
            return
        if not self._logprobs.try_take(whose.client, most):
            text = "other answers come with so many logprobs that there is no room for these"
            raise self._refused(len(requests), text)
        try:
            yield
        finally:
            self._logprobs.give_back(whose.client, most)

    def _take(self, whose: Whose, count: int) -> None:
        client = whose.client
        if self._draining:
            raise Draining("the gateway is shutting down: ask another", RETRY_MS)
        places, taken = self._places, 0
        if count > whose.requests:  # it would be refused again, however long it waits
            most = f"{whose.requests} of yours may be in the gateway at once: send fewer"
            raise BadField("prompt", f"prompt: {count} in one call, and {most}")
        if places.held(client) + count > whose.requests:
            text = f"{whose.requests} prompts of yours may be in the gateway at once"
            raise self._refused(count, f"{text}, and {places.held(client)} are")
        while taken < count and places.try_take(client):
            taken += 1
        if taken < count:
            for _ in range(taken):
                places.give_back(client)
            held = places.held(client)
            raise self._refused(count, f"the gateway is full; {held} prompts in it are yours")
        self._idle.clear()

    def _refused(self, count: int, why: str) -> Overloaded:
        """So many are not let in, and are over. A call that is not read yet counts as one."""
        error = Overloaded(why, RETRY_MS)
        self._telemetry.add("requests", count, how(error))
        return error

    def _give(self, client: str) -> None:
        self._places.give_back(client)
        if self._places.free == self._places.total:
            self._idle.set()
