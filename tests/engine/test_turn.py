"""A prompt's turn is the conductor's order, nobody waits for ever, and what is late is refused."""

from __future__ import annotations

import math
import queue
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent
from kvstore.engine.errors import BadRequest
from kvstore.engine.model import Model
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Request
from kvstore.engine.turn import DELAY_SECONDS_MAX, due
from kvstore.engine.worker import Failed, Job, JobEvent, Started, Worker
from kvstore.errors import Overloaded
from tests.engine.runs import prompt
from tests.engine.test_telling import SECONDS, NoPool

MOMENTS = st.floats(0, 1e6)
PRIORITIES_MS = st.floats(-1e4, 1e4)


@given(
    prompts=st.lists(st.tuples(MOMENTS, PRIORITIES_MS), min_size=2, max_size=9),
    aging=st.floats(0.01, 1.0),
)
def test_prompts_of_one_conductor_stand_in_the_order_that_it_says(
    prompts: list[tuple[float, float]], aging: float
) -> None:
    ordered = sorted(prompts, key=lambda one: due(one[0], one[1], aging))
    ranks = [priority_ms + aging * 1e3 * arrival for arrival, priority_ms in ordered]
    assert all(a <= b + 1e-6 * (1 + abs(a)) for a, b in pairwise(ranks))


@given(
    first=st.tuples(MOMENTS, st.floats(-1e12, 1e12), st.floats(0, 1e9)),
    second=st.tuples(MOMENTS, st.floats(-1e12, 1e12), st.floats(0, 1e9)),
)
def test_whoever_waits_for_two_hours_is_before_all_that_come_then(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> None:
    if second[0] > first[0] + 2 * DELAY_SECONDS_MAX:
        assert due(*first) < due(*second)


def test_who_says_nothing_is_due_when_it_comes() -> None:
    assert due(12.5, 0.0, 0.0) == 12.5
    assert due(12.5, 700.0, 0.0) == 12.5


@pytest.mark.parametrize("said", [(math.nan, 0.1), (1.0, -0.1), (math.inf, 0.1), (1.0, math.nan)])
def test_numbers_that_no_conductor_says_are_refused(said: tuple[float, float]) -> None:
    with pytest.raises(BadRequest, match="aging"):
        due(0.0, *said)


def test_a_request_goes_on_though_another_of_its_name_is_refused_and_its_caller_leaves(
    model: Model,
) -> None:
    core = EngineCore(model, EngineSettings(pages=48, max_batch_tokens=64))
    worker = Worker(core, NoPool())  # type: ignore[arg-type]
    heard: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
    refused: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
    worker.submit(Job(Request("same", tuple(prompt(200, seed=1)), 3), PoolUse(), heard.put))
    second = Job(Request("same", tuple(prompt(10, seed=2)), 3), PoolUse(), refused.put)
    worker.submit(second)
    worker.cancel(second)  # as the service does at every call's end
    worker.start()
    failed = refused.get(timeout=SECONDS)
    assert isinstance(failed, Failed) and isinstance(failed.error, BadRequest)
    told = [heard.get(timeout=SECONDS) for _ in range(5)]
    assert isinstance(told[0], Started) and isinstance(told[-1], FinishEvent)
    worker.stop(SECONDS)
    assert core.idle


def test_a_prompt_that_has_not_begun_in_time_is_refused_and_the_others_go_on(model: Model) -> None:
    core = EngineCore(model, EngineSettings(pages=48, max_batch_tokens=64))
    worker = Worker(core, NoPool())  # type: ignore[arg-type]
    heard: dict[str, queue.SimpleQueue[JobEvent]] = {}

    def submit(name: str, due: float, begin_by: float = math.inf) -> None:
        heard[name] = queue.SimpleQueue()
        asked = Request(name, tuple(prompt(600, seed=len(heard))), 2, due=due)
        worker.submit(Job(asked, PoolUse(), heard[name].put, begin_by))

    now = time.monotonic()
    submit("runs", 0.0)
    submit("late", 2.0, begin_by=now)
    submit("patient", 1.0, begin_by=now + SECONDS)
    worker.start()
    failed = heard["late"].get(timeout=SECONDS)
    assert isinstance(failed, Failed) and isinstance(failed.error, Overloaded)
    for name in ("runs", "patient"):
        assert isinstance(heard[name].get(timeout=SECONDS), Started)
    worker.stop(SECONDS)
    assert heard["late"].empty() and core.idle
    assert core.cache.allocator.free == core.cache.allocator.pages
