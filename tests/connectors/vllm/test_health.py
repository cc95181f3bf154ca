"""What an engine's log says of a node that goes and comes back: one line each, whoever calls it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kvstore.client import Lapsed, SessionEnded, Unavailable
from kvstore.engine.connectors.vllm.health import Health

GONE = Unavailable("it hung up")
LEFT_ALONE = Unavailable("the node failed a moment ago and is left alone for a while")


class Found:
    """A client, and whether it has found its node."""

    reachable = True


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The beginning of each line."""
    lines: list[str] = []
    log = logging.getLogger("vllm.moonpool")
    monkeypatch.setattr(log, "warning", lambda text, *_: lines.append(text))
    return lines


def test_a_node_that_one_side_of_an_engine_finds_before_the_other_is_back_once(
    said: list[str],
) -> None:
    sides: Any = Found(), Found()
    scheduler, worker = (Health("a node", one) for one in sides)
    scheduler.failed(GONE)
    worker.failed(GONE)
    for _ in range(3):  # each step, while the worker's client still leaves the node alone
        scheduler.well()
        worker.failed(LEFT_ALONE)
    assert len(said) == 1 and "cannot be reached" in said[0]
    worker.well()
    scheduler.well()
    assert len(said) == 2 and "answers again" in said[1]


def test_a_miss_because_the_node_is_gone_is_no_answer_of_it(said: list[str]) -> None:
    client: Any = Found()
    health = Health("another", client)
    health.failed(GONE)
    client.reachable = False
    health.well()
    assert len(said) == 1
    client.reachable = True
    health.well()
    assert len(said) == 2 and "answers again" in said[1]


def test_a_hold_that_ran_out_is_no_node_that_is_gone(said: list[str]) -> None:
    client: Any = Found()
    health = Health("a well one", client)
    health.failed(Lapsed("the pin's time is over"))
    health.well()
    assert said == ["Moonpool: %s: %s"]
    health.failed(SessionEnded("the node restarted"))
    health.well()
    assert "cannot be reached" in said[1] and "answers again" in said[2]


def test_an_engine_that_ended_while_it_had_no_node_keeps_no_other_from_saying_so(
    said: list[str],
) -> None:
    ended: Any = Found()
    Health("a third", ended).failed(GONE)
    del ended
    client: Any = Found()
    health = Health("a third", client)
    health.failed(GONE)
    health.well()
    assert [one for one in said if "answers again" in one]
