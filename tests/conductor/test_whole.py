"""Who decodes what is prefilled at a server of others: itself, unless others can follow it."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.conductor.explained import reply_of
from kvstore.core.cost import DecodeCost
from tests.conductor.crews import WHOSE, Rig, ask

SLOW = DecodeCost(0.2, 1e-4, 1e-8)  # seconds
VLLM, SGLANG = "http://127.0.0.1:8000", "sglang://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("address", "prefills", "decodes"),
    [
        (VLLM, {"decode": None, "followed": True}, "other"),
        (VLLM, {"decode": None}, "first"),
        (VLLM, {"followed": True}, "first"),
        (SGLANG, {"decode": None}, "first"),
        (SGLANG, {}, "first"),
        ("127.0.0.1:7500", {"decode": None}, "other"),
        ("127.0.0.1:7500", {"decode": SLOW}, "other"),
    ],
)
def test_servers_that_only_prefill_and_can_be_followed_hand_a_prompt_over(
    address: str, prefills: dict[str, Any], decodes: str
) -> None:
    rig = Rig()
    rig.engine("first", address=address, node_id="n", **prefills)
    rig.engine("other", prefill=None, address=address)
    plan = rig.schedule(tokens=3_000)
    assert plan.prefill is not None and plan.decode is not None
    assert (plan.prefill.facts.engine_id, plan.decode.facts.engine_id) == ("first", decodes)
    reply = reply_of(rig.scheduler, plan, False)
    assert reply.prefill.node_id == "n", "where whoever follows it finds its KV"
    assert reply.tpot_ms > 0 or plan.decode.decode is None


def test_a_server_that_only_prefills_has_place_for_a_prompt_without_its_answer() -> None:
    rig = Rig()
    rig.engine("first", address=VLLM, decode=None, followed=True, room_tokens=2_000)
    rig.engine("other", address=VLLM, prefill=None, room_tokens=9_000)
    assert rig.sent_to(tokens=2_000, max_new_tokens=500) == "first"


def test_one_that_decodes_what_it_prefills_says_what_a_step_takes_there() -> None:
    rig = Rig()
    slow = rig.engine("slow", address=VLLM, decode=SLOW)
    rig.engine("quick", address=VLLM, prefill=None)
    plan = rig.scheduler.consider(WHOSE, ask(tokens=1_000), rig.now)
    assert plan.decode is slow and plan.step >= SLOW.a
