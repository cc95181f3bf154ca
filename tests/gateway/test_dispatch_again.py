"""A dispatcher whose engine goes away under a request: it goes on elsewhere, behind what came."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from kvstore.errors import Unavailable
from kvstore.gateway import run as run_module
from kvstore.wire.v1 import conductor_pb2
from kvstore.wire.v1 import engine_pb2 as pb
from tests.gateway.engine_doubles import PROMPT, TOKENS, Double, Nobody, Planner, run, serving


def test_an_engine_that_goes_away_is_gone_on_from_behind_its_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dying, other = Double(dies_after=2), Double()
    with serving(dying, other):
        tokens, outcome = run(Planner(dying.address, dying.address), other.address)
    assert tokens == TOKENS and outcome.tries == 2
    (again,) = other.generates
    assert list(again.prompt) == [*PROMPT, TOKENS[0]], "its last token is made again"
    assert again.max_new_tokens == len(TOKENS) - 1 and again.request_id != "r"
    assert f"goes on without {dying.address}: " in caplog.text, "an operator sees which one went"


def test_as_many_tokens_as_fit_are_as_many_elsewhere() -> None:
    dying, other = Double(dies_after=2), Double()
    with serving(dying, other):
        tokens, _ = run(Nobody(), dying.address, other.address, as_many_as_fit=True)
    assert tokens == TOKENS
    (first,), (again,) = dying.generates, other.generates
    assert first.as_many_as_fit and again.as_many_as_fit
    assert again.max_new_tokens == len(TOKENS) - 1


class Unlike(Double):
    """Of other kernels: behind the first of TOKENS it goes on otherwise."""

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        self.generates.append(request)
        said = [80, 81] if request.prompt[-1] == TOKENS[0] else [90, 91, 92]
        for token in said[: request.max_new_tokens]:
            yield pb.GenerateReply(token=token)


def test_where_another_engine_makes_the_last_token_otherwise_it_goes_on_behind_what_was_told() -> (
    None
):
    dying, other = Double(dies_after=2), Unlike()
    with serving(dying, other):
        tokens, outcome = run(Nobody(), dying.address, other.address)
    assert tokens == [*TOKENS[:2], 90, 91] == outcome.tokens
    assert [list(one.prompt[len(PROMPT) :]) for one in other.generates] == [TOKENS[:1], TOKENS[:2]]
    assert len({one.request_id for one in other.generates}) == 2


class DiesAtTheEnd(Double):
    """Before it has said that it is the end."""

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        yield from (pb.GenerateReply(token=token) for token in TOKENS)
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


def test_of_an_answer_of_which_all_was_told_nothing_more_is_asked_for() -> None:
    """Though another engine would have ended it otherwise."""
    dying, other = DiesAtTheEnd(), Unlike()
    with serving(dying, other):
        tokens, outcome = run(Nobody(), dying.address, other.address)
    assert tokens == TOKENS == outcome.tokens and len(other.generates) == 1


class TakesAnHour(Double):
    """By the clock of whoever waits for it, before it goes away."""

    now = 0.0

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        yield from itertools.islice(super().Generate(request, context), 1 + (self.dies_after or 0))
        self.now += 3_600.0
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


@pytest.mark.parametrize(("came", "waited_ms"), [(0, 3_600_000), (1, 0)])
def test_one_that_had_tokens_waits_from_when_it_lost_its_engine(
    monkeypatch: pytest.MonkeyPatch, came: int, waited_ms: int
) -> None:
    """Were it from when it came, an answer that ran for long would be refused as too late."""
    dying, other = TakesAnHour(dies_after=came), Double()
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: dying.now))
    with serving(dying, other):
        planner = Planner(dying.address, dying.address)
        tokens, _ = run(planner, other.address)
    assert tokens == TOKENS
    assert [one.waited_ms for one in planner.asked] == [0, waited_ms]


def test_one_that_ran_is_not_failed_by_an_engine_that_is_full() -> None:
    dying, full, other = Double(dies_after=2), Double(refuses=True), Double()
    with serving(dying, full, other):
        tokens, outcome = run(Nobody(), dying.address, full.address, other.address)
    assert tokens == TOKENS
    assert outcome.engines == [dying.address, full.address, other.address]


class Moves(Planner):
    """Sends it to one engine alone, and later to two, of which none has room in time."""

    def __init__(self, alone: str, prefill: str, decode: str, computed: int) -> None:
        super().__init__(alone, alone, computed)
        self._later = prefill, decode

    def schedule(
        self, request: conductor_pb2.ScheduleRequest
    ) -> conductor_pb2.ScheduleReply | None:
        reply = super().schedule(request)
        (self._prefill, self._decode), self._late = self._later, True
        return reply


@pytest.mark.parametrize("computed", [100, 4])
def test_one_that_ran_is_not_failed_by_room_that_comes_too_late(computed: int) -> None:
    dying, prefill, decode = Double(dies_after=2), Double(), Double()
    with serving(dying, prefill, decode):
        planner = Moves(dying.address, prefill.address, decode.address, computed)
        tokens, outcome = run(planner)
    assert tokens == TOKENS and outcome.tries == 2
    assert outcome.engines[0] == dying.address and outcome.engines[-1] == decode.address


def test_an_engine_that_has_other_weights_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    other, right = Double(revision="r2"), Double()
    with serving(other, right):
        tokens, outcome = run(Nobody(), other.address, right.address)
        assert tokens == TOKENS and outcome.engines == [other.address, right.address]
        assert f"without {other.address}: it has other weights" in caplog.text
        with pytest.raises(Unavailable, match="other weights"):
            run(Nobody(), other.address)


def test_a_prompt_is_handed_over_by_no_engine_that_has_other_weights() -> None:
    other, decode = Double(revision="r2"), Double()
    with serving(other, decode):
        tokens, outcome = run(Planner(other.address, decode.address), decode.address)
    assert tokens == TOKENS and outcome.engines == [other.address, decode.address]
    assert not decode.generates[0].hand_off.handles


def test_where_all_engines_go_away_the_caller_is_told() -> None:
    with pytest.raises(Unavailable):
        run(Nobody(), "127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(Unavailable, match="no engine is known"):
        run(Nobody())
