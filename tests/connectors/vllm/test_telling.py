"""What conductors are told of requests, whatever becomes of them; no engine runs here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kvstore.engine.connectors.request_name import ID_BYTES_MAX
from kvstore.engine.connectors.vllm import telling
from kvstore.engine.connectors.vllm.telling import Telling
from tests.connectors.heard import Heard


@dataclass
class Request:
    """As vLLM's scheduler has them."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.num_tokens = self.num_tokens or self.num_prompt_tokens


@dataclass
class Output:
    """Of one of its steps."""

    num_scheduled_tokens: dict[str, int]
    preempted_req_ids: set[str] | None = None


class Engine:
    """Schedules what the test says, and computes it at once."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.telling = Telling(self.heard)
        self.requests: dict[str, Request] = {}

    def arrives(self, name: str, tokens: int, **moonpool: str) -> None:
        request = Request(name, tokens, kv_transfer_params={"moonpool": moonpool})
        self.requests[name] = request
        self.telling.arrived(request, [b"h" * 32], follows="follow" in moonpool)

    def steps(self, scheduled: dict[str, int], *over: str, preempted: str = "") -> None:
        """One step, with which some requests are over."""
        self.telling.scheduled(Output(scheduled, {preempted} if preempted else None))
        for name, tokens in scheduled.items():
            request = self.requests[name]
            request.num_computed_tokens += tokens
            if request.num_computed_tokens >= request.num_tokens:
                request.num_tokens = request.num_computed_tokens + 1
        for name in over:
            self.ends(name)
        self.telling.computed()

    def ends(self, name: str) -> None:
        self.telling.finished(self.requests.pop(name))

    def hears(self) -> list[tuple[object, ...]]:
        """What was told since this was last asked."""
        said, self.heard.said = self.heard.said, []
        return said


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_request_is_told_of_from_its_arrival_to_its_end(engine: Engine) -> None:
    engine.arrives("r", 100)
    assert engine.hears() == [("accepted", "r", 100, 0, [b"h" * 32])]
    engine.steps({"r": 60})
    assert engine.hears() == [("began", "r"), ("prefilled", 60, 0), ("load", 0, 0)]
    engine.steps({"r": 40})
    ended = [("prefilled", 40, 60), ("ended", "r"), ("decoding", "r"), ("load", 1, 101)]
    assert engine.hears() == ended
    engine.steps({"r": 1})
    assert engine.hears() == [("stepped", 1, 101), ("load", 1, 101)]
    engine.steps({"r": 1}, "r")
    over = [("over", 3), ("load", 0, 0), ("stepped", 1, 102), ("load", 0, 0)]
    assert engine.hears() == over


def test_a_request_that_is_over_with_its_first_token_ended_and_is_no_load(engine: Engine) -> None:
    engine.arrives("r", 100)
    engine.steps({"r": 100}, "r")
    assert engine.hears()[1:] == [
        ("began", "r"),
        ("ended", "r"),
        ("prefilled", 100, 0),
        ("load", 0, 0),
    ]


@pytest.mark.parametrize("computed", [0, 60])
def test_one_that_is_aborted_before_its_first_token_is_given_up(
    engine: Engine, computed: int
) -> None:
    engine.arrives("r", 100)
    if computed:
        engine.steps({"r": computed})
    engine.ends("r")
    assert engine.hears()[-1] == ("given_up", "r")


def test_steps_of_several_kinds_are_no_measure_of_any(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.arrives(name, 100)
    engine.steps({"a": 50, "b": 50})
    engine.steps({"a": 50})
    engine.steps({"a": 1, "b": 50})
    measured = [one for one in engine.hears() if one[0] in ("prefilled", "stepped")]
    assert measured == [("prefilled", 50, 50)]


def test_one_that_is_preempted_is_no_load_until_it_is_decoded_again(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.arrives(name, 10)
        engine.steps({name: 10})
    engine.hears()
    engine.requests["b"].num_computed_tokens = 0
    engine.steps({"a": 1}, preempted="b")
    assert engine.hears() == [("stepped", 1, 11), ("load", 1, 11)]
    engine.steps({"b": 11})
    assert ("ended", "b") not in engine.hears(), "it ended before"
    engine.steps({"a": 1, "b": 1})
    assert engine.hears()[-1][:2] == ("load", 2)


def test_what_one_that_was_preempted_computes_again_is_no_measure_of_decoding(
    engine: Engine,
) -> None:
    for name in ("a", "b"):
        engine.arrives(name, 10)
        engine.steps({name: 10})
    for _ in range(50):
        engine.steps({"a": 1, "b": 1})
    engine.steps({"a": 1}, preempted="b")
    engine.hears()
    engine.requests["b"].num_computed_tokens = 32  # of 61, which vLLM's own cache has yet
    engine.steps({"a": 1, "b": 20})
    engine.steps({"b": 9})
    assert engine.hears() == [("load", 1, 62), ("load", 2, 62 + 61)], "decoded again from then on"
    engine.steps({"a": 1, "b": 4})  # three drafts
    assert engine.hears()[0][:2] == ("stepped", 2)


def test_one_that_follows_a_prefill_is_told_of_when_it_is_decoded(engine: Engine) -> None:
    engine.arrives("r", 100, follow="name")
    engine.requests["r"].num_computed_tokens = 96
    engine.steps({"r": 4})
    told = [("prefilled", 4, 96), ("ended", "r"), ("decoding", "r"), ("load", 1, 101)]
    assert engine.hears() == told


def test_one_that_follows_a_prefill_and_is_over_with_its_first_token_ended(engine: Engine) -> None:
    engine.arrives("r", 100, follow="name")
    engine.requests["r"].num_computed_tokens = 96
    engine.steps({"r": 4}, "r")
    assert engine.hears() == [("ended", "r"), ("prefilled", 4, 96), ("load", 0, 0)]


def test_a_request_has_the_name_that_its_sender_gave_it(engine: Engine) -> None:
    engine.arrives("cmpl-1", 10, request="theirs")
    engine.arrives("cmpl-2", 10, request="x" * (ID_BYTES_MAX + 1))
    engine.arrives("cmpl-3", 10, request="a\nb")
    names = [str(one[1]) for one in engine.hears()]
    assert names[0] == "theirs" and all(len(one) == 64 for one in names[1:])


def test_a_step_in_which_the_process_was_stopped_is_not_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "SECONDS_MAX", -1.0)
    engine.arrives("r", 100)
    engine.steps({"r": 100})
    assert not any(one[0] == "prefilled" for one in engine.hears())
