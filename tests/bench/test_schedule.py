"""The schedule bench decides every request it made up, and nothing is left of those that ended."""

from __future__ import annotations

import json

import pytest

from bench import __main__ as command
from bench import schedule

BLOCKS = 8 * schedule.CHAIN


def test_requests_are_decided_and_their_rate_and_latency_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"DECISIONS": 200, "NODES": 20, "CALLS": 20}.items():
        monkeypatch.setattr(schedule, name, value)
    command.main(["schedule", "--json", "--runs", "2", "--blocks", str(BLOCKS)])
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    rate, p99, called = said["rows"]
    assert rate["counted"] and p99["counted"] and not called["counted"]
    assert called["value"] > 0 and called["sizes"]["decisions"] == 20
    assert rate["sizes"]["blocks"] == BLOCKS and rate["sizes"]["nodes"] == 20
    assert rate["ratio"] == pytest.approx(rate["value"] / 10_000, rel=1e-2)
    assert p99["ratio"] == pytest.approx(1 / p99["value"], rel=1e-2)
    assert said["ratio"] == min(rate["ratio"], p99["ratio"])
    assert rate["also"]["reused_share"] > 0.2


def test_what_was_decided_is_load_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "NODES", 5)
    crowd = schedule.Crowd(BLOCKS)
    assert len(crowd.decide(50)) == 50
    crowd.scheduler.check()
    assert crowd.in_flight.prompts
    crowd.finish()
    crowd.scheduler.check()
    assert not crowd.in_flight.prompts
