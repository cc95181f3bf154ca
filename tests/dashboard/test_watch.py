from __future__ import annotations

import asyncio
import threading

import pytest

from kvstore.dashboard.history import LINES_MAX, MOMENTS_MAX
from kvstore.dashboard.panels import PANELS, VLLM_PANELS
from kvstore.dashboard.samples import Sample
from kvstore.dashboard.watch import WATCHED_MAX, Watch
from kvstore.errors import ConfigError, Unavailable


def of_gateway(asked: float, cached: float) -> list[Sample]:
    none: frozenset[tuple[str, str]] = frozenset()
    return [
        Sample("moonpool_process_info", frozenset({("process", "gateway")}), 1.0, False),
        Sample("moonpool_request_prompt_tokens_total", none, asked, True),
        Sample("moonpool_request_cached_tokens_total", none, cached, True),
    ]


def test_charts_have_each_moment_and_null_where_nothing_could_be_said() -> None:
    watch = Watch(["a:1"])
    watch.take(1_000.0, 0.0, [("a:1", of_gateway(0, 0))])
    watch.take(1_002.0, 2.0, [("a:1", of_gateway(100, 40))])
    chart = next(one for one in watch.history.charts() if one["key"] == "hit_rate")
    assert watch.history.times == [1_000.0, 1_002.0]
    assert {line["name"]: line["values"] for line in chart["lines"]} == {
        "found": [None, 0.4],
        "expected": [None, 0.0],
    }
    assert watch.history.last["hit_rate"]["found"] == 0.4


def test_a_process_that_does_not_answer_is_told_and_the_others_go_on() -> None:
    watch = Watch(["a:1", "b:2"])
    assert [one["silent"] for one in watch.processes()] == ["not read yet"] * 2
    watch.take(0.0, 0.0, [("a:1", of_gateway(0, 0)), ("b:2", Unavailable("b:2: nobody", 1))])
    watch.take(2.0, 2.0, [("a:1", of_gateway(10, 5)), ("b:2", Unavailable("b:2: nobody", 1))])
    assert watch.processes() == [
        {"address": "a:1", "process": "gateway", "silent": "", "holds": {}},
        {"address": "b:2", "process": "", "silent": "b:2: nobody", "holds": {}},
    ]
    assert watch.history.last["hit_rate"]["found"] == 0.5


def test_whatever_goes_wrong_with_one_is_told_of_that_one_alone() -> None:
    def reads(address: str) -> list[Sample]:
        if address == "b:2":
            raise AssertionError("nobody foresaw it")
        return of_gateway(0, 0)

    async def watched() -> Watch:
        watch = Watch(["a:1", "b:2"], reads)
        keeping = asyncio.create_task(watch.keep())
        while not watch.history.times and not keeping.done():
            await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return watch

    well, ill = asyncio.run(watched()).processes()
    assert (well["process"], well["silent"]) == ("gateway", "")
    assert ill["silent"] == "b:2: AssertionError: nobody foresaw it"


def test_what_each_process_holds_is_told_of_each() -> None:
    watch = Watch(["a:1", "b:2"])
    tiers = [
        Sample(f"moonpool_{name}", frozenset({("tier", tier)}), value, False)
        for name, tier, value in (
            ("tier_bytes", "dram", 5.0),
            ("tier_capacity_bytes", "dram", 9.0),
            ("tier_bytes", "ssd", 7.0),
        )
    ]
    blocks = Sample("moonpool_blocks", frozenset(), 3.0, False)
    watch.take(0.0, 0.0, [("a:1", [*tiers, blocks]), ("b:2", [])])
    assert [one["holds"] for one in watch.processes()] == [
        {"tier_bytes dram": 5, "tier_capacity_bytes dram": 9, "tier_bytes ssd": 7, "blocks": 3},
        {},
    ]


def test_history_and_lines_are_bounded() -> None:
    watch = Watch(["a:1"])
    for number in range(MOMENTS_MAX + 10):
        said = [
            Sample("moonpool_prompts_total", frozenset({("miss", f"{i}")}), number, True)
            for i in range(LINES_MAX + 10)
        ]
        watch.take(float(number), float(number), [("a:1", said)])
    chart = next(one for one in watch.history.charts() if one["key"] == "misses")
    assert len(watch.history.times) == MOMENTS_MAX
    assert len(chart["lines"]) == LINES_MAX


def test_more_addresses_than_may_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="--watch"):
        Watch([f"a:{port}" for port in range(1, WATCHED_MAX + 2)])


def test_each_chart_has_a_key_of_its_own_and_asks_something() -> None:
    assert len({one.key for one in PANELS}) == len(PANELS)
    assert all(one.asks.endswith("?") and one.lines for one in PANELS)


def test_charts_of_vllm_are_there_where_one_is_watched_and_not_before() -> None:
    watch = Watch(["a:1"])
    watch.take(0.0, 0.0, [("a:1", of_gateway(0, 0))])
    assert len(watch.history.charts()) == len(PANELS)
    none: frozenset[tuple[str, str]] = frozenset()
    for second, tokens in ((2.0, 0.0), (4.0, 100.0)):
        said = [
            Sample("moonpool:query_tokens_total", none, tokens, True),
            Sample("moonpool:loaded_tokens_total", none, 0.75 * tokens, True),
        ]
        watch.take(second, second, [("a:1", said)])
    assert watch.history.last["vllm_hit_rate"] == {"found": 0.0, "loaded": 0.75}
    assert "vllm_hit_rate" in [one["key"] for one in watch.history.charts()]
    assert watch.processes()[0]["process"] == "vllm"


def test_each_chart_of_vllm_has_a_key_of_its_own_too() -> None:
    keys = [one.key for one in (*PANELS, *VLLM_PANELS)]
    assert len(set(keys)) == len(keys)
    assert all(one.asks.endswith("?") and one.lines for one in VLLM_PANELS)


def test_a_gateway_that_reads_its_own_metrics_stops_without_waiting_for_its_own_answer() -> None:
    answered = threading.Event()

    async def stopped() -> bool:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def reads(address: str) -> list[Sample]:
            loop.call_soon_threadsafe(asked.set)
            answered.wait(5.0)  # which the loop says, as it answers whoever reads its metrics
            return []

        keeping = asyncio.create_task(Watch(["a:1"], reads).keep())
        await asked.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        reading = [one for one in threading.enumerate() if one.name.startswith("metrics")]
        return any(one.is_alive() for one in reading)

    try:
        assert asyncio.run(stopped()), "it ended when the reading had: the loop stood still"
    finally:
        answered.set()
