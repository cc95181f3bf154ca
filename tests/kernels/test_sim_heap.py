"""The heap of events gives them back as heapq does, those of one time in the order they came."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.sim_heap import heap, pop, push

PROVEN = settings(derandomize=True, deadline=None)  # the machine may be busy
TIMES = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, 1e9)


@PROVEN
@given(st.lists(TIMES | st.none(), max_size=200))
def test_it_is_a_queue_by_time_and_then_by_order(told: list[float | None]) -> None:
    """None takes the next one out."""
    ours, known, said = heap(len(told) + 1), [], 0
    for time in told:
        if time is not None:
            push(ours, time, said % 5, said % 7, said)
            heapq.heappush(known, (time, said))
            said += 1
        elif known:
            time, what = heapq.heappop(known)
            assert pop(ours) == (time, what % 5, what % 7, what)
        assert ours.counts.tolist() == [len(known), said]
    while known:
        time, what = heapq.heappop(known)
        assert pop(ours) == (time, what % 5, what % 7, what)


def test_more_than_it_has_place_for_is_an_error_and_not_another_events_memory() -> None:
    ours = heap(2)
    push(ours, 1.0, 0, 0, 0)
    push(ours, 2.0, 0, 0, 1)
    with pytest.raises(IndexError, match="more events at once"):
        push(ours, 3.0, 0, 0, 2)
    assert pop(ours)[3] == 0 and pop(ours)[3] == 1
