"""The engine's one thread: takes jobs from any thread, steps the core, tells each job what happens.

Everything that touches model, cache or pool runs here. A job hears of its events in order and then
no more; a job whose caller has gone is cancelled and its pages and windows are freed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .cadence import Cadence
from .core import EngineCore, FinishEvent, TokenEvent
from .errors import BadRequest
from .pool import Pool
from .pool_use import PoolUse
from .sequence import Request

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.2  # how long an idle engine waits for a command before it looks around


@dataclass(slots=True)
class Started:
    """The prompt's KV is in the pages as far as the pool had it; computing begins."""

    use: PoolUse
    computed_tokens: int  # prompt tokens left to compute here


@dataclass(slots=True)
class Failed:
    """The job is over because of this error."""

    error: Exception


JobEvent = Started | TokenEvent | FinishEvent | Failed


@dataclass(slots=True, eq=False)
class Job:
    """A request, its use of the pool, and who is told."""

    request: Request
    use: PoolUse
    tell: Callable[[JobEvent], None]  # called on the engine's thread
    started: bool = field(default=False)


class Worker:
    """Runs one `EngineCore` until `stop`."""

    def __init__(self, core: EngineCore, pool: Pool) -> None:
        self.core, self.pool = core, pool
        core.hooks = pool
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job. Safe from any thread."""
        self._commands.put(lambda: self._add(job))

    def cancel(self, request_id: str) -> None:
        """End a job without further word. Safe from any thread; unknown ids are passed over."""
        self._commands.put(lambda: self._cancel(request_id))

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
        cadence = Cadence()
        while not self._stopping.is_set():
            self._obey()
            if self.core.idle:
                continue
            try:
                events = self.core.step()
            except Exception as error:  # the engine outlives any one batch
                log.error("a step failed", exc_info=error)
                self._fail_all(error)
                continue
            self._announce_started()
            for event in events:
                self._tell(event.request_id, event)
            running = self.core.scheduler.running.values()
            if self.pool.landed():
                cadence.landed(time.monotonic())
            elif not events and all(one.loading for one in running):
                time.sleep(cadence.pause(time.monotonic()))
        for request_id in list(self._jobs):
            self._cancel(request_id)

    def _obey(self) -> None:
        wait = IDLE_SECONDS if self.core.idle else 0.0
        try:
            while True:
                self._commands.get(block=wait > 0, timeout=wait)()
                wait = 0.0
        except queue.Empty:
            return

    def _add(self, job: Job) -> None:
        self.pool.expect(job.request.id, job.use)
        try:
            self.core.add(job.request)
        except BadRequest as error:
            if job.request.id not in self._jobs:
                self.pool.forget(job.request.id)
            job.tell(Failed(error))
            return
        self._jobs[job.request.id] = job

    def _cancel(self, request_id: str) -> None:
        self._jobs.pop(request_id, None)
        self.core.abort(request_id)
        self.pool.forget(request_id)

    def _announce_started(self) -> None:
        for sequence in self.core.scheduler.running.values():
            job = self._jobs.get(sequence.id)
            if job is not None and not job.started and not sequence.loading:
                self._start(job, sequence.cached_tokens)

    def _start(self, job: Job, cached_tokens: int) -> None:
        job.started = True
        job.tell(Started(job.use, len(job.request.prompt) - cached_tokens))

    def _tell(self, request_id: str, event: TokenEvent | FinishEvent) -> None:
        job = self._jobs.get(request_id)
        if job is None:
            return
        if isinstance(event, FinishEvent):
            del self._jobs[request_id]
            if not job.started:
                self._start(job, event.cached_tokens)
        job.tell(event)

    def _fail_all(self, error: Exception) -> None:
        jobs, self._jobs = self._jobs, {}
        for request_id, job in jobs.items():
            self.core.abort(request_id)
            self.pool.forget(request_id)
            job.tell(Failed(error))
