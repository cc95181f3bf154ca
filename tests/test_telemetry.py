from __future__ import annotations

import re
from itertools import chain, pairwise

import pytest

from kvstore import telemetry
from kvstore.telemetry import (
    BY_PROCESS,
    CONNECTOR,
    GATEWAY,
    NODE,
    SECONDS,
    Kind,
    Metric,
    Telemetry,
    Times,
)

EVERY = [*chain.from_iterable(one.values() for one in BY_PROCESS.values())]


def test_counters_are_there_from_the_start_and_those_of_a_label_once_they_count() -> None:
    counted = Telemetry(NODE)
    assert counted.totals()["sealed_blocks"] == 0
    counted.add("sealed_blocks")
    counted.add("sealed_blocks", 2)
    counted.add("match_miss", label="absent")
    assert counted.totals()["sealed_blocks"] == 3
    assert counted.totals()["match_miss.absent"] == 1
    assert counted.values("sealed_blocks") == {"": 3.0}
    assert counted.values("match_miss") == {"absent": 1.0}
    assert counted.totals().keys() - {"match_miss.absent"} < NODE.keys()


@pytest.mark.parametrize(
    ("name", "label"), [("seeled_blocks", ""), ("match_miss", ""), ("sealed_blocks", "why")]
)
def test_what_is_not_listed_so_is_not_counted(name: str, label: str) -> None:
    with pytest.raises(AssertionError):
        Telemetry(NODE).add(name, 1, label)
    with pytest.raises(AssertionError):
        Telemetry(GATEWAY).observe(name, 1.0, label)


def test_a_gauge_is_what_is_looked_up_when_somebody_asks() -> None:
    held = [3.0]
    looked = Telemetry(NODE)
    assert looked.values("pins") == {}, "nobody knows"
    looked.look_up("pins", lambda: held[0])
    looked.look_up("tier_bytes", lambda: {"dram": 5.0, "ssd": 7.0})
    held[0] = 4.0
    assert looked.values("pins") == {"": 4.0}
    assert looked.values("tier_bytes") == {"dram": 5.0, "ssd": 7.0}


def test_times_fall_into_the_bucket_whose_end_they_do_not_pass() -> None:
    times = Times()
    for seconds in (0.001, 0.0011, 0.3, 500.0):
        times.add(seconds)
    counts = dict(times.at_most())
    assert (counts[0.001], counts[0.0015], counts[0.2], counts[0.3]) == (1, 2, 2, 3)
    assert counts[120] == 3 and counts[float("inf")] == 4
    assert times.total == pytest.approx(500.3021)


def test_a_quantile_can_be_read_from_the_buckets_within_half_of_itself() -> None:
    assert all(low < high <= 1.6 * low for low, high in pairwise(SECONDS))


def test_a_name_means_one_thing_in_all_processes() -> None:
    meant: dict[str, Metric] = {}
    for one in EVERY:
        assert meant.setdefault(one.name, one) == one, f"{one.name} is told in two ways"


@pytest.mark.parametrize("metric", EVERY, ids=lambda one: one.name)
def test_a_metric_has_a_name_that_prometheus_takes_and_a_text(metric: Metric) -> None:
    assert re.fullmatch(r"moonpool_[a-z][a-z_]*[a-z]", metric.exposed)
    assert metric.text and not metric.text.endswith(".")
    assert metric.exposed.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_seconds") or metric.kind is not Kind.HISTOGRAM
    assert metric.label not in {"tenant", "client", "prompt", "le"}


def test_what_is_in_vllms_own_metrics_is_spelled_as_those_are() -> None:
    spelled = {one.exposed for one in CONNECTOR.values()}
    assert {"moonpool:hit_tokens_total", "moonpool:load_seconds"} <= spelled
    assert all(re.fullmatch(r"moonpool:[a-z_]+", one) for one in spelled)
    assert not CONNECTOR.keys() & {one.name for one in EVERY}, "a name means one thing"


def test_every_kind_of_process_tells_of_itself() -> None:
    for listed in BY_PROCESS.values():
        assert {one.name for one in telemetry.PROCESS} <= listed.keys()
