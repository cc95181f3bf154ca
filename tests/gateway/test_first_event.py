"""A server that is busy with others says nothing for long, and is not taken for one that went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from kvstore.gateway import engines, events
from tests.gateway.engine_doubles import Nobody
from tests.gateway.openai_server import DONE, DRIP, WAIT, Double, serving, told
from tests.gateway.test_vllm import TOKENS, WHOLE, run
from tests.nodes import eventually

SILENCE_SECONDS = 3.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "SILENCE_SECONDS", SILENCE_SECONDS)


@dataclass
class Busy(Double):
    """Says nothing before it was asked so often how it is."""

    asked_before: int = 2

    def __post_init__(self) -> None:
        self.events = _Events(self, self.events)


@dataclass
class _Events(Sequence[Any]):
    busy: Busy
    all: Sequence[Any]

    def __iter__(self) -> Iterator[Any]:
        eventually(lambda: len(self.busy.looked) >= self.busy.asked_before)
        return iter(self.all)

    def __getitem__(self, at: Any) -> Any:
        return self.all[at]

    def __len__(self) -> int:
        return len(self.all)


def test_a_server_that_is_well_is_waited_for_until_its_first_token() -> None:
    busy, other = Busy(WHOLE), Double(WHOLE)
    with serving(busy, other):
        tokens, outcome = run(Nobody(), busy.address, other.address)
    assert tokens == TOKENS and outcome.engines == [busy.address]
    assert set(busy.looked) == {"/health"} and len(busy.asked) == 1


def test_one_that_is_not_well_is_gone_on_without_and_why_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ill, other = Double((WAIT,), well=False), Double(WHOLE)
    with serving(ill, other):
        tokens, outcome = run(Nobody(), ill.address, other.address)
    assert tokens == TOKENS and outcome.engines == [ill.address, other.address]
    assert "nothing was heard of it for 3 s" in caplog.text and "/health says 503" in caplog.text


def test_one_that_says_for_ever_that_it_is_well_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "FIRST_SECONDS", 2 * SILENCE_SECONDS)
    silent, other = Double((DRIP,)), Double(WHOLE)
    with serving(silent, other):
        tokens, outcome = run(Nobody(), silent.address, other.address)
    assert tokens == TOKENS and outcome.engines == [silent.address, other.address]
    assert "it said no first token in 6 s" in caplog.text


def test_one_that_falls_silent_behind_its_first_token_is_not_asked_how_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent, other = Double((told(TOKENS[:1]), WAIT)), Double((told(TOKENS, "length"), DONE))
    with serving(silent, other):
        run(Nobody(), silent.address, other.address)
    assert not silent.looked and "nothing was heard of it for 3 s" in caplog.text
