"""Why an answer ended, as its caller is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstore.config import GatewayConfig
from kvstore.gateway.http.answers import reason_of
from kvstore.gateway.http.served import Served
from kvstore.gateway.request import Outcome
from tests.gateway.http.test_app import Scripted, asked


@pytest.mark.parametrize(("ignore", "reason"), [(False, "stop"), (True, "length")])
def test_an_end_token_is_why_an_answer_ended_unless_it_was_to_go_on_behind_those(
    model_dir: Path, ignore: bool, reason: str
) -> None:
    served = Served.of(GatewayConfig(model_dir, engines=("127.0.0.1:1",)))
    runner = Scripted((20, 21, min(served.eos)))
    reply = asked(served, runner, max_tokens=3, ignore_eos=ignore)
    assert json.loads(reply.body)["choices"][0]["finish_reason"] == reason


def test_what_an_engine_says_goes_before_what_its_last_token_is() -> None:
    assert reason_of(Outcome(tokens=[2], reason="length"), {2}) == "length"
    assert reason_of(Outcome(tokens=[5], reason="stop"), {2}) == "stop"
    assert [reason_of(Outcome(tokens=some), {2}) for some in ([], [5])] == ["length"] * 2
