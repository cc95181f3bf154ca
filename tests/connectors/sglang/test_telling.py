"""What conductors are told of an SGLang server's requests, whatever becomes of them; none runs
here."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest
from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from kvstore.engine.connectors.request_name import ID_BYTES_MAX
from kvstore.engine.connectors.sglang import telling
from kvstore.engine.connectors.sglang.telling import Telling
from kvstore.naming import names_of, rid_of
from tests.connectors.heard import Heard

NAMES = names_of(bytes(32), 0, 16, "sglang 0/1")


@dataclass
class Request:
    """As SGLang's scheduler has them."""

    rid: str
    origin_input_ids: array[int]
    output_ids: array[int] = field(default_factory=lambda: array("q"))
    extra_key: str | None = None
    cache_salt: str | None = None
    multimodal_inputs: Any = None
    over: bool = False
    is_retracted: bool = False

    @property
    def seqlen(self) -> int:
        return len(self.origin_input_ids) + len(self.output_ids)

    def finished(self) -> bool:
        return self.over


@dataclass
class Batch:
    """Of one of its steps."""

    forward_mode: ForwardMode
    reqs: list[Request]
    extend_lens: list[int] = field(default_factory=list)
    prefix_lens: list[int] = field(default_factory=list)
    launch_ts: float | None = field(default_factory=time.monotonic)


class Engine:
    """Schedules what the test says, and computes it at once."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.telling = Telling(self.heard, NAMES, 16)
        self.requests: dict[str, Request] = {}

    def arrives(self, name: str, tokens: int, **more: Any) -> Request:
        request = Request(rid_of(name), array("q", range(tokens)), **more)
        self.requests[name] = request
        self.telling.queued(request)
        return request

    def prefills(self, *some: tuple[str, int, int], mode: ForwardMode = ForwardMode.EXTEND) -> None:
        """Of each so many tokens behind so many; who has all then has a token."""
        requests = [self.requests[name] for name, _, _ in some]
        batch = Batch(mode, requests, [one[1] for one in some], [one[2] for one in some])
        self.telling.scheduled(batch)
        for request, (_, new, prefix) in zip(requests, some, strict=True):
            if new + prefix >= len(request.origin_input_ids):
                request.output_ids.append(1)
        self.telling.computed(batch)

    def decodes(self, *names: str, over: str = "") -> None:
        batch = Batch(ForwardMode.DECODE, [self.requests[name] for name in names])
        self.telling.scheduled(batch)
        for name in names:
            self.requests[name].output_ids.append(1)
            self.requests[name].over = name == over
        self.telling.computed(batch)

    def hears(self) -> list[tuple[object, ...]]:
        """What was told since this was last asked."""
        said, self.heard.said = self.heard.said, []
        return said


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_request_is_told_of_from_its_arrival_to_its_end(engine: Engine) -> None:
    request = engine.arrives("r", 40)
    hashes = NAMES.of(request.origin_input_ids)
    assert len(hashes) == 2 and engine.hears() == [("accepted", "r", 40, 0, hashes)]
    engine.prefills(("r", 40, 0))
    assert engine.hears() == [
        *(("began", "r"), ("prefilled", 40, 0)),
        *(("ended", "r"), ("decoding", "r"), ("load", 1, 41)),
    ]
    engine.decodes("r")
    assert engine.hears() == [("stepped", 1, 41), ("load", 1, 42)]
    engine.decodes("r", over="r")
    assert engine.hears() == [("stepped", 1, 42), ("over", 3), ("load", 0, 0)]
    assert not engine.telling.busy


def test_a_prompt_that_is_computed_in_parts_begins_once_and_ends_once(engine: Engine) -> None:
    engine.arrives("r", 100)
    engine.hears()
    engine.prefills(("r", 60, 0))
    assert engine.hears() == [("began", "r"), ("prefilled", 60, 0), ("load", 0, 0)]
    engine.prefills(("r", 40, 60))
    assert [one[0] for one in engine.hears()] == ["prefilled", "ended", "decoding", "load"]


def test_a_step_of_several_prompts_or_of_both_kinds_measures_nothing(engine: Engine) -> None:
    for name in "ab":
        engine.arrives(name, 20)
    engine.hears()
    engine.prefills(("a", 20, 0), ("b", 20, 0))
    assert not {"prefilled", "stepped"} & {one[0] for one in engine.hears()}
    engine.arrives("c", 20)
    engine.prefills(("c", 20, 0), mode=ForwardMode.MIXED)
    assert not {"prefilled", "stepped"} & {one[0] for one in engine.hears()}


def test_a_step_that_was_stopped_meanwhile_measures_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "SECONDS_MAX", -1.0)
    engine.arrives("r", 20)
    engine.prefills(("r", 20, 0))
    assert "prefilled" not in {one[0] for one in engine.hears()}


def test_one_that_waits_again_decodes_nothing_until_it_is_computed_again(engine: Engine) -> None:
    for name in "ab":
        engine.arrives(name, 20)
    engine.prefills(("a", 20, 0), ("b", 20, 0))
    engine.hears()
    engine.requests["a"].is_retracted = True
    engine.telling.queued(engine.requests["a"])
    assert engine.hears() == [("load", 1, 21)]
    engine.decodes("a", "b")  # the step that was under way
    assert [one for one in engine.hears() if one[0] == "load"] == [("load", 1, 22)]
    engine.requests["a"].output_ids.pop()
    engine.requests["a"].is_retracted = False
    engine.prefills(("a", 21, 0))
    assert engine.hears() == [("prefilled", 21, 0), ("load", 2, 22 + 22)]


def test_one_that_is_given_up_before_it_is_computed_was_never_decoded(engine: Engine) -> None:
    waits, runs = engine.arrives("waits", 20), engine.arrives("runs", 40)
    engine.prefills(("runs", 10, 0))
    engine.hears()
    engine.telling.gone(waits)
    assert engine.hears() == [("given_up", "waits"), ("load", 0, 0)]
    engine.telling.gone(runs)
    assert engine.hears() == [("given_up", "runs"), ("load", 0, 0)]
    engine.telling.gone(runs)
    assert not engine.hears() and not engine.telling.busy


def test_an_engine_that_is_idle_has_nothing_whatever_was_heard(engine: Engine) -> None:
    engine.arrives("waits", 20)
    engine.arrives("decodes", 20)
    engine.prefills(("decodes", 20, 0))
    engine.hears()
    engine.telling.idle()
    assert engine.hears() == [("given_up", "waits"), ("over", 1), ("load", 0, 0)]


def test_what_sglang_runs_for_its_own_health_is_nobody_s(engine: Engine) -> None:
    engine.telling.queued(Request(f"{HEALTH_CHECK_RID_PREFIX}_1", array("q", [0])))
    assert not engine.hears() and not engine.telling.busy


@pytest.mark.parametrize("about", [{"extra_key": "mine"}, {"multimodal_inputs": object()}])
def test_prompts_that_are_more_than_their_tokens_are_named_by_nothing(
    engine: Engine, about: dict[str, Any]
) -> None:
    engine.arrives("r", 40, **about)
    assert engine.hears() == [("accepted", "r", 40, 0, ())]


def test_of_a_prompt_of_very_many_pages_the_first_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telling, "PAGES_MAX", 2)
    engine = Engine()
    request = engine.arrives("r", 100)
    assert engine.hears() == [("accepted", "r", 100, 0, NAMES.of(request.origin_input_ids[:32]))]


def test_a_name_that_no_conductor_takes_is_told_as_another(engine: Engine) -> None:
    for name in ("a\nb", "x" * (ID_BYTES_MAX + 1)):
        engine.arrives(name, 4)
    names = [one[1] for one in engine.hears()]
    assert len(set(names)) == 2 and all(len(str(one)) == 64 for one in names)
