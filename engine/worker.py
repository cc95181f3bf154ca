"""The engine's one thread: takes jobs from any thread, steps the core, tells each job what happens.

Everything that touches model, cache or pool runs here. A job hears of its events in order and then
no more; a job whose caller has gone is cancelled and its pages and windows are freed.

A job may say by when it is to have begun: the prompt that nobody has begun to bring or compute by
then is refused, for its first token would come too late to be of use.

At rank 0 of a team it tells the other ranks, before each step, what came in since the last. A step
that failed at one rank leaves the ranks in different states, so with a team it ends the engine.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.cadence import Cadence
from kvstore.client.teller import Teller
from kvstore.errors import Overloaded
from kvstore.telemetry import ENGINE, Telemetry

from .core import EngineCore, FinishEvent, TokenEvent
from .errors import BadRequest
from .measuring import Measuring
from .orders import END, STEP, Admit, Drop, encode
from .pool import Pool
from .pool_use import PoolUse
from .sequence import Request
from .team import SOLO, Team
from .telling import Telling

log = logging.getLogger(__name__)

WHOLE = "whole"  # no miss: all of a prompt was loaded
SOON_SECONDS, LATER_SECONDS = 2e-4, 2e-3  # between two looks at what lands; a new job may have come
WAITS_SECONDS = 20.0  # between two times that those who wait again hear of that
IDLE_SECONDS = 0.2  # how long an idle engine waits for a command before it looks around


@dataclass(slots=True)
class Started:
    """The prompt's KV is in the pages as far as the pool had it; computing begins."""

    use: PoolUse
    computed_tokens: int  # prompt tokens left to compute here


@dataclass(slots=True)
class Waits:
    """It gave its pages up, and waits for others: the engine is well."""


@dataclass(slots=True)
class Failed:
    """The job is over because of this error."""

    error: Exception


JobEvent = Started | Waits | TokenEvent | FinishEvent | Failed


@dataclass(slots=True, eq=False)
class Job:
    """A request, its use of the pool, and who is told."""

    request: Request
    use: PoolUse
    tell: Callable[[JobEvent], None]  # called on the engine's thread
    begin_by: float = math.inf  # of the monotonic clock: later it is not worth beginning
    trace: str = ""  # the span of whoever asked
    started: bool = field(default=False)


@dataclass(frozen=True, slots=True)
class Left:
    """A job's caller has gone. Another job may have the same name by now, and goes on."""

    job: Job


class Worker:
    """Runs one `EngineCore` until `stop`."""

    def __init__(
        self,
        core: EngineCore,
        pool: Pool,
        team: Team = SOLO,
        broken: Callable[[], None] = lambda: None,
    ) -> None:
        """`broken` is called on the engine's thread when it ends by an error, which is `error`."""
        self.core, self.pool = core, pool
        self.telemetry = Telemetry(ENGINE)
        self._measuring = Measuring(pool, self.telemetry)
        core.hooks = self._measuring
        self._teller: Teller | None = None
        self.error: Exception | None = None
        self._team, self._broken = team, broken
        self._commands: queue.SimpleQueue[Job | Left] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}
        self._announced = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def tell(self, teller: Teller) -> None:
        """Who hears of every request, for conductors; said before `start`."""
        self._teller = teller
        self.core.hooks = Telling(self._measuring, teller)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job. Safe from any thread."""
        self._commands.put(job)

    def cancel(self, job: Job) -> None:
        """End a job without further word. Safe from any thread; one that is over is passed over."""
        self._commands.put(Left(job))

    @property
    def requests(self) -> int:
        return len(self._jobs)

    def stop(self, deadline_seconds: float) -> None:
        """Finish what runs, for a bounded time, then end the thread."""
        end = time.monotonic() + deadline_seconds
        while self._jobs and time.monotonic() < end:
            time.sleep(0.02)
        self._stopping.set()
        self._thread.join(timeout=deadline_seconds + 1.0)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            log.error("the engine ends: %s", error, exc_info=error)
            self.error = error
            try:
                self._fail_all(error)
            finally:  # else nobody ends a process that answers no request any more
                self._broken()

    def _serve(self) -> None:
        cadence = Cadence(SOON_SECONDS, LATER_SECONDS, time.monotonic())
        while not self._stopping.is_set():
            self._obey()
            if self.core.idle:
                continue
            try:
                events = self.core.step()
            except Exception as error:
                self._outlive(error)
                continue
            self._announce_started()
            self._announce_waiting()
            for event in events:
                self._tell(event.request_id, event)
            running = self.core.scheduler.running.values()
            if self.pool.landed():
                cadence.landed(time.monotonic(), 1)
            elif not events and all(one.loading for one in running):
                time.sleep(cadence.pause(time.monotonic()))
        for request_id in list(self._jobs):
            self._cancel(request_id)
        self._team.tell(END)

    def _obey(self) -> None:
        for one in [*self._taken(), *self._late()]:
            if isinstance(one, Job):
                if self._team.ranks > 1:
                    # Nobody else may guess what they write as.
                    one.use.writer_group = uuid.uuid4().hex
                self._order(Admit.of(one.request, one.use))
                self._add(one)
            elif self._jobs.get(one.job.request.id) is one.job:
                self._order(Drop(one.job.request.id))
                try:
                    self._cancel(one.job.request.id)
                except Exception as error:  # of what steps before it were to do
                    self._outlive(error)
        if self._team.ranks > 1:
            # Also where there is nothing to do: so the others know that this rank is alive.
            self._team.tell(STEP)

    def _order(self, order: Admit | Drop) -> None:
        if self._team.ranks > 1:
            self._team.tell(encode(order))

    def _taken(self) -> list[Job | Left]:
        """What has come in. Waits a while for the first where there is nothing to do."""
        wait, taken = IDLE_SECONDS if self.core.idle else 0.0, []
        try:
            while True:
                taken.append(self._commands.get(block=wait > 0, timeout=wait))
                wait = 0.0
        except queue.Empty:
            return taken

    def _late(self) -> list[Left]:
        """Those whose time to begin is over, told so."""
        scheduler, now = self.core.scheduler, time.monotonic()
        idle = [one for one in scheduler.running.values() if not (one.begun or one.loading)]
        found = []
        for sequence in [*scheduler.waiting, *idle]:
            job = self._jobs.get(sequence.id)
            if job is not None and not sequence.gave_way and now >= job.begin_by:
                job.tell(Failed(Overloaded(f"request {sequence.id} has not begun in time")))
                found.append(Left(job))
        return found

    def _add(self, job: Job) -> None:
        try:
            self.core.add(job.request)
        except BadRequest as error:
            job.tell(Failed(error))
            return
        self.pool.expect(job.request.id, job.use)
        self._measuring.came(job.request.id, job.trace)
        self._jobs[job.request.id] = job
        if self._teller is not None and job.use.hand_offs is None:
            request = job.request
            # Whoever is told of them counts on finding them in the pool.
            hashes = self.pool.hashes(request) if job.use.enabled else []
            self._teller.accepted(request.id, len(request.prompt), 0, hashes)

    def _cancel(self, request_id: str) -> None:
        if self._jobs.pop(request_id, None) is not None and self._teller is not None:
            self._teller.given_up(request_id)
        self.core.abort(request_id)
        self.pool.forget(request_id)
        self._measuring.forget(request_id)

    def _announce_started(self) -> None:
        for sequence in self.core.scheduler.running.values():
            job = self._jobs.get(sequence.id)
            if job is not None and not job.started and not sequence.loading:
                self._start(job, sequence.cached_tokens)

    def _announce_waiting(self) -> None:
        """Whoever hears nothing at all takes an engine for gone after a while."""
        if (now := time.monotonic()) - self._announced < WAITS_SECONDS:
            return
        self._announced = now
        for sequence in self.core.scheduler.waiting:
            if sequence.gave_way and (job := self._jobs.get(sequence.id)) is not None:
                job.tell(Waits())

    def _start(self, job: Job, cached_tokens: int) -> None:
        job.started = True
        use, add = job.use, self.telemetry.add
        follows = use.hand_offs is not None
        if use.enabled and not follows:  # who prefills one that is followed has counted it
            add("prompts", label=use.miss or WHOLE)
        add("loaded_bytes", use.loaded_bytes)
        computed = len(job.request.prompt) - cached_tokens
        # And there it is counted what the pool had: all that comes from there is handed over, also
        # what is sealed by now.
        add("prompt_tokens", cached_tokens, "hand_off" if follows else "pool")
        add("prompt_tokens", computed, "computed")
        job.tell(Started(use, computed))

    def _tell(self, request_id: str, event: TokenEvent | FinishEvent) -> None:
        job = self._jobs.get(request_id)
        if job is None:
            return
        if isinstance(event, TokenEvent):
            self.telemetry.add("output_tokens")
        if isinstance(event, FinishEvent):
            del self._jobs[request_id]
            if not job.started:
                self._start(job, event.cached_tokens)
        job.tell(event)

    def _outlive(self, error: Exception) -> None:
        """A step failed; one rank outlives any one batch. Raises it where there are others."""
        if self._team.ranks > 1:
            raise error
        log.error("a step failed", exc_info=error)
        self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        jobs, self._jobs = self._jobs, {}
        self.telemetry.add("failed_requests", len(jobs))
        for job in jobs.values():  # first: to end one may fail by the same
            job.tell(Failed(error))
        for request_id in jobs:
            if self._teller is not None:
                self._teller.given_up(request_id)
            self.core.abort(request_id)
            self.pool.forget(request_id)
            self._measuring.forget(request_id)
