"""Names are numbered as going through them one by one would number them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstore.planner import lineage, spans
from tests.planner.loads import PROVEN

REQUESTS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=12)


def columns(requests: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    names = np.array([name for request in requests for name in request])
    return names, spans.offsets(np.array([len(request) for request in requests]))


@PROVEN
@given(REQUESTS)
def test_names_are_numbered_as_they_appear(requests: list[list[int]]) -> None:
    names, _ = columns(requests)
    seen: dict[int, int] = {}
    one_by_one = [seen.setdefault(name, len(seen)) for name in names.tolist()]
    assert lineage.by_appearance(names).tolist() == one_by_one


@PROVEN
@given(REQUESTS)
def test_names_by_prefix_are_equal_where_all_before_is(requests: list[list[int]]) -> None:
    names, first = columns(requests)
    seen: dict[tuple[int, ...], int] = {}
    one_by_one = [
        seen.setdefault(tuple(request[: place + 1]), len(seen))
        for request in requests
        for place in range(len(request))
    ]
    numbered = lineage.by_prefix(names, first)
    assert lineage.by_appearance(numbered).tolist() == one_by_one
    assert lineage.stray(numbered, first) is None


@PROVEN
@given(REQUESTS)
def test_the_first_name_with_a_second_parent_is_found(requests: list[list[int]]) -> None:
    names, first = columns(requests)
    parent: dict[int, tuple[int, int]] = {}
    row, expected = 0, None
    for request in requests:
        before = lineage.ROOT
        for name in request:
            known, debut = parent.setdefault(name, (before, row))
            if known != before and expected is None:
                expected = (row, debut)
            before, row = name, row + 1
    assert lineage.stray(names, first) == expected
