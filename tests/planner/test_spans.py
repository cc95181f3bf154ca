from __future__ import annotations

import numpy as np

from kvstore.planner import spans

FIRST = np.array([0, 2, 2, 5])  # the second is empty


def test_spans_are_told_by_their_offsets() -> None:
    assert spans.offsets(np.array([2, 0, 3])).tolist() == FIRST.tolist()
    assert spans.owners(FIRST).tolist() == [0, 0, 2, 2, 2]
    assert spans.positions(FIRST).tolist() == [0, 1, 0, 1, 2]


def test_the_rows_of_some_spans_come_in_the_order_asked_for() -> None:
    assert spans.rows(FIRST, np.array([2, 1, 0])).tolist() == [2, 3, 4, 0, 1]
    assert spans.rows(FIRST, np.array([0, 0])).tolist() == [0, 1, 0, 1]


def test_a_running_sum_begins_anew_with_each_span() -> None:
    values = np.array([5, 1, 2, 3, 4])
    assert spans.running(values, np.array([0, 2, 5])).tolist() == [5, 6, 2, 5, 9]
