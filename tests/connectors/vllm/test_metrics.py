"""The connector's figures as Prometheus reads them of vLLM."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from kvstore.engine.connectors.vllm.metrics import METRIC_TYPES, MoonpoolProm, MoonpoolStats
from kvstore.telemetry import CONNECTOR

OF_ENGINE = {"model_name": "m", "engine": "0"}


def test_series_are_told_apart_by_what_they_are_listed_with_and_by_vllms_own_labels_alone() -> None:
    registry, config = CollectorRegistry(), SimpleNamespace(kv_transfer_config=object())
    types: Any = {one: partial(one, registry=registry) for one in METRIC_TYPES}
    shown = MoonpoolProm(config, types, list(OF_ENGINE), {0: list(OF_ENGINE.values())})
    stats = MoonpoolStats()
    stats.add("hit_tokens", 64)
    stats.add("miss", reason="absent")
    stats.loaded(0.5)
    stats.saves(1.5, 3.0)
    shown.observe(stats.data)
    for name, one in CONNECTOR.items():
        more = {one.label} if one.label else set()
        found = [
            sample
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name.removesuffix("_count") == one.exposed
        ]
        assert found and all(set(it.labels) == {*OF_ENGINE, *more} for it in found), name
    saved = CONNECTOR["connector_gpu_saved_seconds"].exposed
    assert registry.get_sample_value(saved, OF_ENGINE) == 3.0
