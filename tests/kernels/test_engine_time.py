from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.engine_time import (
    CHUNK,
    COLUMNS,
    CONTEXT,
    EXPERTS,
    TAKEN,
    decode_steps,
    decode_takes,
    prefill_takes,
    step_seconds,
)


def times() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """One engine: overhead, weights, a token, small, a pair, context, a sequence, a chunk, and no
    experts."""
    made = np.array([[0.008, 0.022, 1.1e-4, 60.0, 1e-9, 6e-8, 1.9e-4, 2_048.0, 0.0, 0.0]])
    assert made.shape == (1, COLUMNS)
    return made


@settings(deadline=None)
@given(st.integers(1, 5_000), st.integers(1, 200), st.floats(1, 400_000))
def test_steps_of_a_batch_take_what_each_of_them_takes(
    steps: int, batch: int, context: float
) -> None:
    each = sum(
        step_seconds(times(), 0, 0.0, 0.0, float(batch), context + batch * done)
        for done in range(min(steps, 50))
    )
    assert decode_takes(times(), 0, min(steps, 50), batch, context) == pytest.approx(each)


@settings(deadline=None)
@given(st.integers(0, 5_000), st.integers(1, 200), st.floats(1, 400_000), st.floats(0, 0.99))
def test_as_many_steps_are_done_as_the_time_is_enough_for(
    steps: int, batch: int, context: float, part: float
) -> None:
    spent = decode_takes(times(), 0, steps, batch, context)
    more = decode_takes(times(), 0, steps + 1, batch, context) - spent
    assert decode_steps(times(), 0, spent, batch, context) == steps
    assert decode_steps(times(), 0, spent + part * more, batch, context) == steps


@pytest.mark.parametrize("context_seconds", [0.0, 1e-18, 1e-15, 1e-12, 1e-6])
def test_steps_are_counted_however_little_a_token_of_context_takes(context_seconds: float) -> None:
    """Where none were counted that had been waited for, a simulation would wait for them again."""
    row = times()
    row[0, CONTEXT] = context_seconds
    for steps in (1, 10, 100):
        spent = decode_takes(row, 0, float(steps), 1, 1_100.0)
        assert decode_steps(row, 0, spent, 1, 1_100.0) == steps


def test_a_prompt_is_prefilled_chunk_by_chunk_each_behind_the_last() -> None:
    chunk = times()[0, CHUNK]
    each = [step_seconds(times(), 0, chunk, 512.0 + chunk * i, 0.0, 0.0) for i in range(3)]
    each.append(step_seconds(times(), 0, 100.0, 512.0 + 3 * chunk, 0.0, 0.0))
    assert prefill_takes(times(), 0, 3 * chunk + 100, 512.0) == pytest.approx(sum(each))


@settings(deadline=None)
@given(st.floats(1, 8_192), st.floats(0, 100_000), st.floats(1, 4_096))
def test_more_work_never_takes_less(new: float, prefix: float, more: float) -> None:
    before = step_seconds(times(), 0, new, prefix, 3.0, 5_000.0)
    assert step_seconds(times(), 0, new + more, prefix, 3.0, 5_000.0) >= before
    assert step_seconds(times(), 0, new, prefix + more, 3.0, 5_000.0) > before
    assert step_seconds(times(), 0, new, prefix, 3.0 + more, 5_000.0) > before


def test_few_sequences_take_as_long_as_the_reading_of_the_weights() -> None:
    one = step_seconds(times(), 0, 0.0, 0.0, 1.0, 0.0)
    assert one == pytest.approx(0.008 + 0.022 + 1.9e-4)


def test_of_experts_those_are_read_that_any_token_takes() -> None:
    routed = times()
    routed[0, [EXPERTS, TAKEN]] = 0.5, 1 / 32
    for new, batch in [(0, 1), (0, 8), (3, 5), (100, 0)]:
        plain = step_seconds(times(), 0, float(new), 0.0, float(batch), 0.0)
        more = step_seconds(routed, 0, float(new), 0.0, float(batch), 0.0) - plain
        assert more == pytest.approx(0.5 * (1 - (31 / 32) ** (new + batch)))
