from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.dashboard.samples import (
    PROCESSES_MAX,
    SERIES_MAX,
    WINDOW_SECONDS,
    Sample,
    Samples,
)
from kvstore.errors import Invalid


def total(name: str, value: float, **labels: str) -> Sample:
    return Sample(name, frozenset(labels.items()), value, True)


def gauge(name: str, value: float, **labels: str) -> Sample:
    return Sample(name, frozenset(labels.items()), value, False)


def test_a_rate_is_what_all_processes_counted_over_the_time_they_took() -> None:
    samples = Samples()
    samples.take(10.0, {"a": [total("x", 100)], "b": [total("x", 7)]})
    assert samples.growth("x") == {}, "one moment has no rate"
    samples.take(12.0, {"a": [total("x", 104)], "b": [total("x", 13)]})
    assert samples.growth("x") == {"": 5.0}


def test_what_was_counted_before_a_process_was_read_is_in_no_rate() -> None:
    samples = Samples()
    samples.take(0.0, {"a": [total("x", 1)]})
    samples.take(1.0, {"a": [total("x", 1)], "late": [total("x", 1_000)]})
    assert samples.growth("x") == {"": 0.0}
    samples.take(2.0, {"a": [total("x", 1)], "late": [total("x", 1_004)]})
    assert samples.growth("x") == {"": 2.0}


def test_a_label_that_counts_for_the_first_time_has_counted_since_the_last_reading() -> None:
    samples = Samples()
    samples.take(0.0, {"a": [total("x", 5, why="old")]})
    samples.take(1.0, {"a": [total("x", 5, why="old"), total("x", 3, why="new")]})
    assert samples.growth("x", "why") == {"old": 0.0, "new": 3.0}


def test_a_process_that_begins_anew_goes_on_from_what_it_had() -> None:
    samples = Samples()
    samples.take(0.0, {"a": [total("x", 50)]})
    samples.take(1.0, {"a": [total("x", 60)]})
    samples.take(2.0, {"a": [total("x", 4)]})
    assert samples.growth("x") == {"": 7.0}


def test_what_a_process_counted_while_nobody_could_read_it_is_no_burst() -> None:
    samples = Samples()
    for second in range(0, 1_000, 2):
        said = {"steady": [total("y", second)]}
        if second <= 100 or second >= 900:
            said["away"] = [total("x", second)]  # one a second, whether it is read or not
        samples.take(float(second), said)
        rates = samples.growth("x").values()
        assert all(rate <= 1.0 for rate in rates), f"{rates} at {second} s"
    assert samples.growth("x") == {"": 1.0}


def test_a_rate_forgets_what_is_older_than_its_window() -> None:
    samples = Samples()
    for second in range(0, 200, 2):
        samples.take(float(second), {"a": [total("x", min(second, 100))]})
    assert samples.growth("x") == {"": 0.0}, "nothing was counted in the last minute"
    assert 198 - WINDOW_SECONDS > 100


def test_gauges_are_summed_over_those_that_answer_now() -> None:
    samples = Samples()
    samples.take(0.0, {"a": [gauge("g", 3, tier="dram")], "b": [gauge("g", 4, tier="dram")]})
    assert samples.now("g", "tier") == {"dram": 7.0}
    samples.take(1.0, {"b": [gauge("g", 5, tier="dram"), gauge("g", 1, tier="ssd")]})
    assert samples.now("g", "tier") == {"dram": 5.0, "ssd": 1.0}
    assert samples.of_each("g").keys() == {"b"}


def test_buckets_are_those_of_a_label_where_one_is_named() -> None:
    samples = Samples()
    ends = [("0.1", 1.0), ("+Inf", 2.0)]
    samples.take(0.0, {"a": []})
    said = [
        total("h_bucket", count * more, le=end, source=source)
        for end, count in ends
        for source, more in (("pool", 1), ("hand_off", 10))
    ]
    samples.take(1.0, {"a": said})
    assert samples.buckets("h", ("source", "pool")) == {0.1: 1.0, float("inf"): 2.0}
    assert samples.buckets("h") == {0.1: 11.0, float("inf"): 22.0}


def test_more_series_or_processes_than_are_allowed_are_refused() -> None:
    with pytest.raises(Invalid, match="series"):
        Samples().take(0.0, {"a": [total("x", 1, n=str(i)) for i in range(SERIES_MAX + 1)]})
    samples = Samples()
    samples.take(0.0, {f"{i}": [] for i in range(PROCESSES_MAX)})
    with pytest.raises(Invalid, match="processes"):
        samples.take(1.0, {"one more": []})


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=4),
        min_size=2,
        max_size=20,
    )
)
def test_nothing_is_counted_twice_and_nothing_is_lost_while_processes_come_and_go(
    seconds: list[list[tuple[str, int]]],
) -> None:
    """Each second some processes count some more and are read; what is read after the first time
    is in the rate, whenever it was read."""
    samples, counts, read, due = Samples(), dict.fromkeys("abc", 0), set(), 0
    samples.take(-1.0, {})
    for second, more in enumerate(seconds):
        for process, count in more:
            counts[process] += count
            due += count if process in read else 0
        heard = {process for process, _ in more}
        samples.take(float(second), {one: [total("x", counts[one])] for one in heard})
        read |= heard
    grown = samples.growth("x")
    assert sum(grown.values()) * len(seconds) == pytest.approx(due)
