"""What decodes is looked at only where it fills a block: and no block of it is missed for that."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.client import Chain, Client
from kvstore.engine.connectors.vllm.messages import Report
from tests.connectors.vllm.test_scheduler import Beside


@pytest.fixture
def decoding() -> Any:
    """A side, and a request of 40 tokens that it stored the two full blocks of."""
    made = Beside()
    one = made.given("a", [7, 8, 9, 10, 11, 12], cached=0)
    assert made.stored(a=40) == {"a": 2}
    one.num_computed_tokens = 40
    yield made, one
    made.close()


def grow(one: Any, tokens: int = 1) -> None:
    """vLLM takes so many tokens, all but the last of which are computed."""
    one.all_token_ids += [90 + one.num_tokens] * tokens
    one.num_tokens += tokens
    one.num_output_tokens += tokens
    one.num_computed_tokens = one.num_tokens - 1


def filled(made: Beside, one: Any, steps: int) -> dict[int, int]:
    """By tokens that a step computes to: blocks that it stores."""
    found = {}
    for _ in range(steps):
        grow(one)
        if stored := made.stored(a=1):
            found[one.num_tokens] = stored["a"]
    return found


def test_each_block_is_stored_by_the_step_that_fills_it(decoding: Any) -> None:
    made, one = decoding
    assert filled(made, one, 40) == {48: 1, 64: 1, 80: 1}


def test_steps_of_several_tokens_miss_none(decoding: Any) -> None:
    made, one = decoding
    grow(one)
    assert made.stored(a=1) == {}
    grow(one, 5)
    assert made.stored(a=1) == {}, "it rests at 46"
    one.all_token_ids += [3] * 4
    one.num_tokens += 4
    assert made.stored(a=5) == {"a": 1}


def test_what_a_worker_could_not_store_is_stored_by_the_next_step(decoding: Any) -> None:
    made, one = decoding
    assert filled(made, one, 12) == {48: 1}
    made.here.heard(Report(late={"a": 2}), set())
    assert filled(made, one, 2) == {53: 1}


def test_one_that_is_given_pages_anew_is_looked_at_from_its_first_step(decoding: Any) -> None:
    """As after a preemption: other pages, which another connector may have filled."""
    made, one = decoding
    assert filled(made, one, 3) == {}
    one.num_preemptions = 1
    made.here.allocated(one, made.pages["a"], 0)
    one.num_computed_tokens = 0
    assert not made.here._here.tracked["a"].ran
    assert made.stored(a=one.num_tokens) == {} and made.here._here.tracked["a"].ran


def test_one_that_rests_costs_a_step_a_look(decoding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, one = decoding
    assert filled(made, one, 2) == {}
    looks: list[str] = []
    monkeypatch.setattr(made.here, "_completed", lambda *_: looks.append("a") or [])
    assert filled(made, one, 5) == {} and not looks, "from 43 to 47"
    grow(one)
    made.stored(a=1)
    assert looks == ["a"], "at 48"


def test_only_new_tokens_are_hashed(decoding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, one = decoding
    hashed: list[int] = []
    extended = Client.extended

    def counted(self: Client, known: Chain, more: Any, extra: Any = None) -> Chain:
        hashed.append(len(more))
        return extended(self, known, more, extra)

    monkeypatch.setattr(Client, "extended", counted)
    assert filled(made, one, 8) == {48: 1}
    assert hashed == [16]
