"""What naming many blocks costs, in calls."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.limits import (
    REPORT_REQUESTS_MAX,
    RPC_BURST_MAX,
    RPC_GIVEN_UP_A_CALL,
    RPC_KEYS_MAX,
    RPC_NAMED_A_CALL,
    RPC_SCHEDULED_A_CALL,
    RPC_WRITTEN_A_CALL,
)
from kvstore.rpc.named import further_calls
from kvstore.wire.v1 import admin_pb2, conductor_pb2, engine_pb2, kv_pb2

MANY = [bytes(32)] * RPC_KEYS_MAX
LOOKED, WRITTEN = RPC_KEYS_MAX // RPC_NAMED_A_CALL, RPC_KEYS_MAX // RPC_WRITTEN_A_CALL


@pytest.mark.parametrize("kind", ["Match", "Exists", "Open", "Pin", "Get"])
def test_blocks_that_are_looked_up_cost_calls_by_their_number(kind: str) -> None:
    asked = getattr(kv_pb2, f"{kind}Request")
    assert further_calls(asked(hashes=MANY)) == LOOKED
    assert further_calls(asked(hashes=MANY[: RPC_NAMED_A_CALL - 1])) == 0, "a small call is one"


@pytest.mark.parametrize("kind", ["Close", "Unpin"])
def test_handles_that_are_given_back_cost_as_much(kind: str) -> None:
    assert further_calls(getattr(kv_pb2, f"{kind}Request")(handles=MANY)) == LOOKED


@pytest.mark.parametrize("kind", ["Seal", "Abort", "Renew"])
def test_what_changes_blocks_costs_more(kind: str) -> None:
    assert further_calls(getattr(kv_pb2, f"{kind}Request")(handles=MANY)) == WRITTEN > LOOKED
    assert further_calls(kv_pb2.ReserveRequest(hashes=MANY)) == WRITTEN
    assert further_calls(kv_pb2.RemoveRequest(hashes=MANY)) == WRITTEN


@pytest.mark.parametrize("kind", ["PoolMatch", "Schedule"])
def test_a_conductor_is_asked_about_long_prompts_at_a_lower_price(kind: str) -> None:
    message = getattr(conductor_pb2, f"{kind}Request")(hashes=MANY)
    assert 0 < further_calls(message) == RPC_KEYS_MAX // RPC_SCHEDULED_A_CALL < LOOKED


def test_what_a_message_within_another_names_counts_as_if_it_were_the_others() -> None:
    request = conductor_pb2.ScheduleRequest(hashes=MANY)
    explained = conductor_pb2.ExplainRequest(request=request)
    assert further_calls(explained) == further_calls(request) > 0
    assert further_calls(conductor_pb2.ExplainRequest(request_id="r")) == 0
    generated = engine_pb2.GenerateRequest(prompt=[1] * 9_999)
    assert further_calls(generated) == 0, "tokens are no names"
    generated.hand_off.handles.extend(MANY)
    assert further_calls(generated) == LOOKED


def test_requests_that_are_given_up_cost_calls_by_their_number() -> None:
    ids = [f"{number}" for number in range(REPORT_REQUESTS_MAX)]
    given_up = conductor_pb2.GiveUpRequest(request_ids=ids)
    assert further_calls(given_up) == REPORT_REQUESTS_MAX // RPC_GIVEN_UP_A_CALL > 0
    assert further_calls(conductor_pb2.GiveUpRequest(request_ids=ids[:10])) == 0


def test_an_operator_pays_as_everybody_does() -> None:
    assert further_calls(admin_pb2.ReplicateRequest(hashes=MANY)) == LOOKED


def test_every_list_of_a_message_counts_and_no_message_costs_more_than_a_tenant_saves_up() -> None:
    both = kv_pb2.OpenRequest(hashes=MANY, hand_offs=MANY)
    assert further_calls(both) == 2 * LOOKED
    assert further_calls(kv_pb2.ReserveRequest(hashes=MANY, parents=MANY)) == 2 * WRITTEN
    forged = kv_pb2.ReserveRequest(hashes=[b""] * 20 * RPC_KEYS_MAX)  # it is refused when looked at
    assert further_calls(forged) < RPC_BURST_MAX


@pytest.mark.parametrize("message", [b"no message of ours", kv_pb2.UnpinRequest(query_tokens=9)])
def test_what_names_nothing_costs_nothing(message: Any) -> None:
    assert further_calls(message) == 0
