"""What the gateway and its engines count is what a person adds up: each request once, whatever
happened to it on its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from kvstore.cli.stack import Child
from kvstore.config import OPEN
from kvstore.dashboard.scrape import read
from kvstore.engine.namespace import spec_of
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import One
from kvstore.wire.v1 import conductor_pb2
from tests.gateway.engine_doubles import Planner
from tests.gateway.http.conftest import House, client_of
from tests.nodes import eventually

BLOCK, NEW, LONG, SECONDS = 64, 5, 900, 60.0


def prompt(seed: int, tokens: int) -> list[int]:
    return [3 + (seed * 131 + 17 * number + number * number) % 500 for number in range(tokens)]


def counted(address: str) -> dict[str, float]:
    """Totals that are not zero, by name and label."""
    found = {}
    for one in read(address):
        of = next((value for name, value in one.labels if name != "le"), "")
        name = one.name.removeprefix("moonpool_").removesuffix("_total")
        if one.grows and one.value and not name.endswith(("_bucket", "_sum")):
            found[f"{name} {of}".strip()] = one.value
    return found


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        name: value - before.get(name, 0.0)
        for name, value in after.items()
        if value != before.get(name, 0.0)
    }


@pytest.fixture
def own(house: House) -> Iterator[Child]:
    """A gateway that has counted nothing yet."""
    with house.serving("counting", *house.knows) as child:
        yield child


def test_each_request_is_counted_once_and_of_a_repeated_one_what_was_found(own: Child) -> None:
    sizes = (200, 256, 63, 1)
    with client_of(own) as ai:
        for seed, size in [*enumerate(sizes)] * 3:
            ask(ai, prompt(seed, size))
        with pytest.raises(openai.BadRequestError):
            ai.completions.create(model="tiny", prompt=[1], max_tokens=-1)
    found = counted(own.metrics)
    asked = 3 * len(sizes)
    assert found["requests whole"] == asked
    assert found["request_prompt_tokens"] == 3 * sum(sizes)
    assert found["request_output_tokens"] == NEW * asked
    assert found["time_to_first_token_seconds_count"] == asked
    assert found["time_per_output_token_seconds_count"] == asked
    # All of a prompt is found the second time, its short last block too; at least one token of it
    # is computed all the same, and where a prompt is one token that is all there is.
    assert found["request_cached_tokens"] <= 2 * sum(sizes)
    assert found["request_cached_tokens"] >= 2 * sum(size - size % BLOCK for size in sizes)
    assert not found.keys() & {"retries", "requests failed", "requests refused", "requests left"}


def test_what_engines_ran_of_prompts_adds_up_to_all_of_them(own: Child, house: House) -> None:
    before = [counted(one.metrics) for one in house.engines]
    sizes = (300, 190, 300)
    with client_of(own) as ai:
        for seed, size in enumerate(sizes):
            ask(ai, prompt(50 + seed, size))
            ask(ai, prompt(50 + seed, size))
    ran = [
        grown(*both)
        for both in zip(before, (counted(one.metrics) for one in house.engines), strict=True)
    ]
    tokens = {
        source: sum(one.get(f"prompt_tokens {source}", 0.0) for one in ran)
        for source in ("pool", "hand_off", "computed")
    }
    outputs = sum(one.get("output_tokens", 0.0) for one in ran)
    prompts = sum(v for one in ran for name, v in one.items() if name.startswith("prompts "))
    assert prompts == 2 * len(sizes), "each is looked up once"
    # One that one engine prefills and another decodes is run by both, and the first makes a token
    # that nobody is given: on a busy machine so may be one of which the pool has all.
    twice = outputs - NEW * 2 * len(sizes)
    assert 0 <= twice <= 2 * len(sizes)
    assert tokens["computed"] >= sum(sizes), "each at least once"
    whole = sum(tokens.values())
    assert 2 * sum(sizes) + twice * min(sizes) <= whole <= 2 * sum(sizes) + twice * max(sizes)


class ThereAfterAll(Planner):
    """Finds room to decode where a prompt is prefilled, and none elsewhere any more."""

    def schedule(self, request: conductor_pb2.ScheduleRequest) -> conductor_pb2.ScheduleReply:
        plan = super().schedule(request)
        if request.phase == conductor_pb2.DECODE:
            plan.decode.address = self._prefill
        return plan


def test_one_that_decodes_where_it_is_prefilled_is_looked_up_once_and_found_nothing(
    house: House, model_dir: Path
) -> None:
    here, other = house.engines
    before, spaces = counted(here.metrics), One(spec_of(model_dir))
    dispatcher = Dispatcher(ThereAfterAll(here.address, other.address), spaces, (), OPEN)
    try:
        outcome = dispatcher.run(Request("there", tuple(prompt(70, 300)), NEW, ignore_eos=True))
    finally:
        dispatcher.close()
    assert outcome.engines == [here.address] * 2 and len(outcome.tokens) == NEW
    assert (outcome.pool_tokens, outcome.miss) == (0, "absent")
    ran = grown(before, counted(here.metrics))
    assert ran["prompts absent"] == 1 and "prompts whole" not in ran
    assert ran["prompt_tokens hand_off"] + ran["prompt_tokens computed"] == 2 * 300
    assert "prompt_tokens pool" not in ran, "what was computed for it was not found"


def test_one_whose_engine_dies_is_counted_once_and_its_retry_too(house: House) -> None:
    with house.engine("dies") as dying:
        knows = (f"--engine={dying.address}", f"--engine={house.engines[0].address}")
        with (
            house.serving("counts", *knows) as gateway,
            client_of(gateway) as ai,
            ThreadPoolExecutor(2) as pool,
        ):
            answers = [pool.submit(ask, ai, prompt(80 + one, 70), LONG) for one in range(2)]
            eventually(lambda: counted(dying.metrics).get("output_tokens", 0) > 3, SECONDS)
            os.kill(dying.pid, signal.SIGKILL)
            assert all(one.result(SECONDS) == LONG for one in answers)
            found = counted(gateway.metrics)
    assert found["requests whole"] == 2
    assert found["request_prompt_tokens"] == 140
    assert found["request_output_tokens"] == 2 * LONG, "what came before the death is not made anew"
    assert found["retries"] == 1


def test_one_that_nobody_can_run_has_failed_and_is_counted_as_nothing_else(house: House) -> None:
    with (
        house.serving("alone", "--engine=127.0.0.1:1") as gateway,
        client_of(gateway) as ai,
        pytest.raises(openai.InternalServerError),
    ):
        try:
            ask(ai, prompt(1, 10))
        finally:
            found = counted(gateway.metrics)
            assert found == {"requests failed": 1}


def test_one_whose_caller_leaves_has_no_tokens(own: Child) -> None:
    with client_of(own) as ai:
        stream = ai.completions.create(
            model="tiny",
            prompt=prompt(90, 20),
            max_tokens=900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        stream.close()
        eventually(lambda: "requests left" in counted(own.metrics), SECONDS)
    assert counted(own.metrics) == {"requests left": 1}


def ask(ai: openai.OpenAI, tokens: list[int], new: int = NEW) -> int:
    """Tokens of the answer."""
    extra = {"ignore_eos": True}
    answer = ai.completions.create(
        model="tiny", prompt=tokens, max_tokens=new, temperature=0, extra_body=extra
    )
    assert answer.usage is not None
    return answer.usage.completion_tokens
