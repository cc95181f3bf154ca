from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.dashboard.expressions import Now, Quantile, Rate, Ratio, quantile
from kvstore.dashboard.samples import Sample, Samples
from kvstore.telemetry import ENGINE, GATEWAY, NODE, SECONDS

INF = float("inf")


def counted(*grown: tuple[str, float]) -> Samples:
    """A second in which these grew by so much."""
    samples = Samples()
    samples.take(0.0, {"a": []})
    samples.take(1.0, {"a": [Sample(name, frozenset(), by, True) for name, by in grown]})
    return samples


def test_a_ratio_is_of_what_was_counted_meanwhile_and_of_nothing_there_is_none() -> None:
    cached, asked = GATEWAY["request_cached_tokens"], GATEWAY["request_prompt_tokens"]
    both = counted((cached.exposed, 30.0), (asked.exposed, 120.0))
    assert Ratio(cached, asked).values(both) == {"": 0.25}
    assert Ratio(cached, asked).values(counted((asked.exposed, 0.0))) == {}


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (Rate(NODE["sealed_blocks"]), "sum (rate(moonpool_sealed_blocks_total[1m]))"),
        (Rate(NODE["match_miss"]), "sum by (reason) (rate(moonpool_match_miss_total[1m]))"),
        (Now(NODE["tier_bytes"]), "sum by (tier) (moonpool_tier_bytes)"),
        (
            Quantile(0.99, ENGINE["load_seconds"], "pool"),
            "histogram_quantile(0.99, sum by (le) "
            '(rate(moonpool_load_seconds_bucket{source="pool"}[1m])))',
        ),
    ],
)
def test_an_expression_says_the_same_to_prometheus(expression: Rate, said: str) -> None:
    assert expression.promql() == said


def test_a_quantile_lies_evenly_within_its_bucket() -> None:
    buckets = {1.0: 10.0, 2.0: 30.0, INF: 40.0}
    assert quantile(0.25, buckets) == 1.0
    assert quantile(0.5, buckets) == 1.5
    assert quantile(0.75, buckets) == 2.0
    assert quantile(0.99, buckets) == 2.0, "nobody knows how far beyond"
    assert quantile(0.5, {}) is None and quantile(0.5, {1.0: 0.0, INF: 0.0}) is None


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_is_in_the_bucket_of_the_one_that_it_is_of(
    seconds: list[float], share: float
) -> None:
    counts = {end: float(sum(one <= end for one in seconds)) for end in (*SECONDS, INF)}
    found = quantile(share, counts)
    exact = sorted(seconds)[max(0, -int(-share * len(seconds) // 1) - 1)]
    at = bisect.bisect_left(SECONDS, exact)
    low = SECONDS[at - 1] if at else 0.0
    assert found is not None and low <= found * (1 + 1e-9) and found <= SECONDS[at] * (1 + 1e-9)
