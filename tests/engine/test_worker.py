"""The engine's thread: whoever asked hears of the end, whatever else fails on the way there."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

import pytest

from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent, TokenEvent
from kvstore.engine.model import Model
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Chunk, Request
from kvstore.engine.sequence import Sequence as Running
from kvstore.engine.worker import Failed, Job, JobEvent, Started, Waits, Worker
from tests.engine.runs import prompt
from tests.engine.test_preemption import FEW_STEPS, ousted
from tests.engine.test_telling import SECONDS, NoPool


class Broken(NoPool):
    """A device that fails says so to the step, and again to whoever settles what it was to do."""

    def layer_done(self, layer: int, chunks: Sequence[Chunk]) -> None:
        raise OSError("the device failed")

    def finished(self, sequence: Running) -> None:
        raise OSError("the device failed")


def test_all_jobs_of_a_step_that_fails_hear_of_it_though_one_of_them_cannot_be_ended(
    model: Model,
) -> None:
    broken: queue.SimpleQueue[str] = queue.SimpleQueue()
    core = EngineCore(model, EngineSettings(pages=48))
    worker = Worker(core, Broken(), broken=lambda: broken.put("broken"))  # type: ignore[arg-type]
    heard = [queue.SimpleQueue[JobEvent]() for _ in range(3)]
    for number, one in enumerate(heard):
        request = Request(str(number), tuple(prompt(20, seed=number)), 4)
        worker.submit(Job(request, PoolUse(), one.put))
    worker.start()
    assert broken.get(timeout=SECONDS) and worker.error is not None
    for one in heard:
        failed = one.get(timeout=SECONDS)
        assert isinstance(failed, Failed) and "the device failed" in str(failed.error)
        assert one.empty()
    worker.stop(SECONDS)


class Unsettled(NoPool):
    """Steps are well, and what they were to store fails whoever settles it, so many times."""

    def __init__(self, times: int) -> None:
        self._left = times

    def finished(self, sequence: Running) -> None:
        if self._left:
            self._left -= 1
            raise OSError("the device failed")


def begun(
    worker: Worker, number: int, new_tokens: int, use: PoolUse | None = None
) -> tuple[Job, queue.SimpleQueue[JobEvent]]:
    """A job that runs."""
    heard: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
    request = Request(str(number), tuple(prompt(20, seed=number)), new_tokens)
    job = Job(request, use or PoolUse(), heard.put)
    worker.submit(job)
    assert isinstance(heard.get(timeout=SECONDS), Started)
    return job, heard


def ended(heard: queue.SimpleQueue[JobEvent]) -> JobEvent:
    """What it hears behind its tokens."""
    while isinstance(event := heard.get(timeout=SECONDS), TokenEvent):
        pass
    return event


def test_a_caller_that_leaves_before_what_failed_was_settled_fails_a_batch_and_no_engine(
    model: Model,
) -> None:
    core = EngineCore(model, EngineSettings(pages=48))
    worker = Worker(core, Unsettled(times=1))  # type: ignore[arg-type]
    worker.start()
    (left, _), (_, other) = (begun(worker, number, 1_000) for number in range(2))
    worker.cancel(left)
    assert isinstance(ended(other), Failed)
    _, later = begun(worker, 2, 4)
    assert isinstance(ended(later), FinishEvent) and worker.error is None
    worker.stop(SECONDS)
    core.cache.allocator.check()


def test_an_engine_of_which_no_job_can_be_ended_says_that_it_is_broken(model: Model) -> None:
    broken = threading.Event()
    core = EngineCore(model, EngineSettings(pages=48))
    hooks = Unsettled(times=4)
    worker = Worker(core, hooks, broken=broken.set)  # type: ignore[arg-type]
    worker.start()
    left, others = begun(worker, 0, 1_000), [begun(worker, number, 1_000) for number in (1, 2)]
    worker.cancel(left[0])
    assert broken.wait(SECONDS) and worker.error is not None
    assert all(isinstance(ended(heard), Failed) for _, heard in others)
    worker.stop(SECONDS)


class Had(NoPool):
    """Had 19 tokens of each prompt, of one that is followed 3 behind a watermark, and no more."""

    def expect(self, request_id: str, use: PoolUse) -> None:
        if use.enabled:
            use.hand_off_tokens = 3 if use.hand_offs else 0
            use.pool_tokens, use.miss = 19 - use.hand_off_tokens, "absent"
        self.tokens = use.pool_tokens + use.hand_off_tokens

    def admitted(self, sequence: Running) -> int:
        return self.tokens


@pytest.mark.parametrize(
    ("use", "counted"),
    [
        (PoolUse(), {"prompts.absent": 1, "prompt_tokens.pool": 19, "prompt_tokens.computed": 1}),
        (PoolUse(hand_offs=(b"h",)), {"prompt_tokens.hand_off": 19, "prompt_tokens.computed": 1}),
        (PoolUse(enabled=False), {"prompt_tokens.computed": 20}),
    ],
    ids=["looks in the pool", "follows a prefill", "goes without"],
)
def test_what_the_pool_had_and_lacked_is_counted_of_prompts_that_looked_in_it(
    model: Model, use: PoolUse, counted: dict[str, int]
) -> None:
    """What is loaded behind a prefill was handed over, also what that had sealed by then."""
    worker = Worker(EngineCore(model, EngineSettings(pages=48)), Had())  # type: ignore[arg-type]
    worker.start()
    _, heard = begun(worker, 0, 2, use)
    assert isinstance(ended(heard), FinishEvent)
    worker.stop(SECONDS)
    totals = {name: total for name, total in worker.telemetry.totals().items() if total}
    assert totals == {**counted, "output_tokens": 2}


def test_one_that_gave_way_before_its_first_token_hears_that_it_waits_and_is_not_late(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.engine.worker.WAITS_SECONDS", 0.0)
    core = EngineCore(model, FEW_STEPS)
    worker = Worker(core, NoPool())  # type: ignore[arg-type]
    heard = queue.SimpleQueue[JobEvent]()
    b = ousted(core)
    worker._jobs["b"] = Job(b.request, PoolUse(), heard.put, begin_by=time.monotonic())
    worker._obey()
    worker._announce_waiting()
    assert isinstance(heard.get(timeout=SECONDS), Waits) and heard.empty()
    assert core.scheduler.find("b") is b
