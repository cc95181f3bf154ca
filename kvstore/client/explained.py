"""A conductor's explanation as plain facts, for people and JSON: times in seconds."""

from __future__ import annotations

from typing import Any

from kvstore.wire.v1 import conductor_pb2 as pb


def facts_of(reply: pb.ExplainReply) -> dict[str, Any]:
    """`engines`: the chosen one, then the others, the cheapest first; where it was refused all are
    others."""
    plan = reply.plan if reply.HasField("plan") else None
    return {
        "sentence": reply.sentence,
        "planned": plan is not None,
        "prefill": plan.prefill.engine_id if plan else "",
        "decode": plan.decode.engine_id if plan else "",
        "ttft_seconds": 1e-3 * plan.ttft_ms if plan else 0.0,
        "computed_tokens": plan.split.computed_tokens if plan else 0,
        "ttft_error": reply.ttft_error,
        "engines": [
            {
                "engine": one.engine_id,
                "cost_seconds": one.cost,
                "first_token_seconds": 1e-3 * one.first_token_ms,
                "wait_seconds": 1e-3 * one.wait_ms,
                "ready_seconds": 1e-3 * one.ready_ms,
                "work_seconds": 1e-3 * one.work_ms,
                "reused_blocks": one.reused_blocks,
                "fetched_blocks": one.fetched_blocks,
                "read_blocks": one.read_blocks,
                "own_blocks": one.own_blocks,
            }
            for one in reply.considered
        ],
    }
