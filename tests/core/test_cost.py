"""Costs are closed forms that grow with the work; what is no cost is refused by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.core.cost import BATCH_MAX, DecodeCost, PrefillCost, TransferCost
from kvstore.errors import Invalid

PREFILL = PrefillCost(0.02, 1.12e-4, 1.05e-9)
DECODE = DecodeCost(0.014, 1e-4, 2.5e-8)
coefficients = st.floats(0, 1, allow_subnormal=False)


def test_a_prefill_costs_its_step_its_tokens_and_the_pairs_they_look_at() -> None:
    assert PREFILL.seconds(0, 0) == 0.02
    assert PREFILL.seconds(8192, 0) == pytest.approx(0.02 + 1.12e-4 * 8192 + 1.05e-9 * 8192**2)
    assert PREFILL.seconds(100, 1000) == pytest.approx(0.02 + 0.0112 + 1.05e-9 * 100 * 2100)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.floats(0, 1))
def test_a_prompt_in_two_pieces_costs_one_more_step_and_nothing_else(
    new: int, prefix: int, cut: float
) -> None:
    first = int(new * cut)
    apart = PREFILL.seconds(first, prefix) + PREFILL.seconds(new - first, prefix + first)
    assert apart == pytest.approx(PREFILL.seconds(new, prefix) + PREFILL.a)


def test_arrays_cost_what_their_elements_do() -> None:
    new = np.array([1, 4096, 1_000_000], dtype=np.int32)  # whose square overflows
    prefix = np.array([0, 77, 1_000_000], dtype=np.int32)
    each = [PREFILL.seconds(int(n), int(p)) for n, p in zip(new, prefix, strict=True)]
    assert PREFILL.seconds(new, prefix).tolist() == each
    assert PREFILL.seconds(new, 0).shape == (3,)
    assert DECODE.seconds(new, prefix).tolist() == [
        DECODE.seconds(int(n), int(p)) for n, p in zip(new, prefix, strict=True)
    ]
    sizes = np.array([0.0, 1e9])
    assert TransferCost(1e-3, 1e9).seconds(sizes, 1e9).tolist() == [1.001, 2.001]


@given(
    *(coefficients, coefficients, coefficients),
    *(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 1000)),
)
def test_more_work_never_costs_less(
    a: float, b: float, c: float, first: int, second: int, more: int
) -> None:
    for cost in (PrefillCost(a, b, c), DecodeCost(a, b, c)):
        least = cost.seconds(first, second)
        assert 0 <= least <= cost.seconds(first + more, second) * (1 + 1e-12)
        assert least <= cost.seconds(first, second + more) * (1 + 1e-12)


@settings(derandomize=True, deadline=None)
@given(coefficients, coefficients, coefficients, st.floats(0, 10), st.integers(0, 10**6))
def test_the_largest_batch_is_within_the_target_and_one_more_is_not(
    a: float, b: float, c: float, target: float, each: int
) -> None:
    cost = DecodeCost(a, b / 1000, c / 1e9)
    found = cost.batch_max(target, each)
    assert 0 <= found <= BATCH_MAX
    assert not found or cost.seconds(found, found * each) <= target
    one_more = found + 1
    assert found == BATCH_MAX or cost.seconds(one_more, one_more * each) > target * (1 - 1e-12)


def test_a_division_that_rounds_the_wrong_way_is_put_right() -> None:
    """Found by trial: int((target - a) / b) is 1565 and 247."""
    for a, b, target, right in (
        (0.0171, 0.000143, 0.240895, 1564),
        (0.0173, 0.000993, 0.26356399999999996, 248),
    ):
        cost = DecodeCost(a, b, 0)
        assert cost.batch_max(target, 0) == right
        assert cost.seconds(right, 0) <= target < cost.seconds(right + 1, 0)


def test_no_batch_is_in_time_where_the_step_alone_is_late() -> None:
    assert DECODE.batch_max(0.014, 1000) == 0
    assert DECODE.batch_max(math.nan, 1000) == 0
    assert DECODE.batch_max(0.0501, 4096) == int(0.0361 / (1e-4 + 2.5e-8 * 4096))
    assert DecodeCost(0, 0, 0).batch_max(0.01, 1) == BATCH_MAX


def test_a_transfer_waits_for_what_is_queued_before_it() -> None:
    link = TransferCost(1e-5, 25e9)
    assert link.seconds(0) == 1e-5
    assert link.seconds(25e9) == pytest.approx(1.00001)
    assert link.seconds(25e9, queued_bytes=50e9) == pytest.approx(3.00001)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, -math.inf])
def test_what_is_no_cost_is_refused_by_name(value: float) -> None:
    for kind in (PrefillCost, DecodeCost):
        for name in "abc":
            with pytest.raises(Invalid, match=rf"{kind.__name__}\.{name} must be"):
                kind(**{**dict.fromkeys("abc", 1.0), name: value})
    with pytest.raises(Invalid, match=r"TransferCost\.latency_seconds"):
        TransferCost(value, 1.0)
    with pytest.raises(Invalid, match=r"TransferCost\.bytes_per_second"):
        TransferCost(0.0, value)
    with pytest.raises(Invalid, match="more than 0"):
        TransferCost(0.0, 0.0)
