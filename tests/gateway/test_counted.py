from __future__ import annotations

import pytest

from kvstore.errors import KVStoreError, Overloaded, TooLate, Unavailable
from kvstore.gateway.caller import CallerLeft
from kvstore.gateway.counted import count
from kvstore.gateway.needs import Unable
from kvstore.gateway.request import Outcome
from kvstore.telemetry import GATEWAY, Telemetry


def test_a_request_that_was_answered_is_counted_once_with_what_it_took() -> None:
    telemetry = Telemetry(GATEWAY)
    outcome = Outcome(
        tokens=[7, 8, 9],
        ttft_seconds=0.5,
        seconds=0.9,
        pool_tokens=64,
        hand_off_tokens=30,
        computed_tokens=6,
        tries=4,
        lost=2,  # of the others one had not its adapter
        expected_tokens=80,
        expected_seconds=0.25,
    )
    count(telemetry, 100, outcome)
    assert {name: total for name, total in telemetry.totals().items() if total} == {
        "requests.whole": 1,
        "request_prompt_tokens": 100,
        "request_cached_tokens": 64,
        "request_expected_tokens": 80,
        "request_output_tokens": 3,
        "retries": 2,
    }
    totals = {
        name: telemetry.times(name)[""].total
        for name, metric in GATEWAY.items()
        if metric.kind == "histogram"
    }
    assert totals == {
        "time_to_first_token_seconds": 0.5,
        "expected_time_to_first_token_seconds": 0.25,
        "time_per_output_token_seconds": pytest.approx(0.2),
        "request_seconds": 0.9,
    }


def test_an_answer_without_tokens_has_no_time_to_its_first() -> None:
    telemetry = Telemetry(GATEWAY)
    count(telemetry, 10, Outcome(seconds=0.1, tries=1))
    assert telemetry.times("time_to_first_token_seconds")[""].total == 0
    assert telemetry.times("time_per_output_token_seconds")[""].total == 0
    assert telemetry.totals()["requests.whole"] == 1


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (Overloaded("full"), "refused"),
        (TooLate("late"), "refused"),
        (Unable("temperature", "write 0"), "refused"),
        (CallerLeft("gone"), "left"),
        (Unavailable("nobody"), "failed"),
    ],
)
def test_of_one_that_was_not_answered_only_its_end_is_counted(
    error: KVStoreError, how: str
) -> None:
    telemetry = Telemetry(GATEWAY)
    count(telemetry, 100, error)
    assert {n: t for n, t in telemetry.totals().items() if t} == {f"requests.{how}": 1}
