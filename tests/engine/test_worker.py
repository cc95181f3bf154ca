"""The engine's thread: whoever asked hears of the end, whatever else fails on the way there."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.model import Model
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Chunk, Request
from kvstore.engine.sequence import Sequence as Running
from kvstore.engine.worker import Failed, Job, JobEvent, Worker
from tests.engine.runs import prompt
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
