"""The charts: one list, which the built-in page shows and the Grafana dashboard is made from.

Each answers one question, which is its title's second line.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvstore.dashboard.expressions import Expression, Now, Quantile, Rate, Ratio
from kvstore.telemetry import CONDUCTOR, CONNECTOR, ENGINE, GATEWAY, NODE


class Unit(enum.StrEnum):
    """What a chart's values are, and how a person reads them."""

    SHARE = "share"
    SECONDS = "seconds"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    PER_SECOND = "1/s"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Line:
    """`name` is what the legend says, before the label's value where there is one."""

    name: str
    is_: Expression


@dataclass(frozen=True, slots=True)
class Panel:
    key: str
    title: str
    asks: str
    unit: Unit
    lines: tuple[Line, ...]
    stacked: bool = False  # parts of a whole
    signed: bool = False  # an estimate, which may be below 0


def _tail(name: str, metric: str, where: str = "") -> tuple[Line, ...]:
    return tuple(
        Line(f"{name} p{round(100 * share)}".strip(), Quantile(share, _ANY[metric], where))
        for share in (0.5, 0.99)
    )


_ANY = {**NODE, **CONDUCTOR, **ENGINE, **GATEWAY, **CONNECTOR}
_PROMPT = GATEWAY["request_prompt_tokens"]
_VLLM_ASKED = CONNECTOR["connector_query_tokens"]
PANELS = (
    Panel(
        "hit_rate",
        "Token hit rate",
        "Of the tokens asked for, how many did the pool have, and how many were expected?",
        Unit.SHARE,
        (
            Line("found", Ratio(GATEWAY["request_cached_tokens"], _PROMPT)),
            Line("expected", Ratio(GATEWAY["request_expected_tokens"], _PROMPT)),
        ),
    ),
    Panel(
        "sources",
        "Where prompts' KV came from",
        "How many prompt tokens a second were loaded, handed over, computed?",
        Unit.PER_SECOND,
        (Line("", Rate(ENGINE["prompt_tokens"])),),
        stacked=True,
    ),
    Panel(
        "misses",
        "Why no more was loaded",
        "What ended each prompt's prefix in the pool?",
        Unit.PER_SECOND,
        (Line("", Rate(ENGINE["prompts"])),),
        stacked=True,
    ),
    Panel(
        "blocks_missed",
        "Why blocks could not be had",
        "What did nodes answer for the block after the last?",
        Unit.PER_SECOND,
        (
            Line("looked for:", Rate(NODE["match_miss"])),
            Line("opened:", Rate(NODE["open_miss_blocks"])),
        ),
        stacked=True,
    ),
    Panel(
        "ttft",
        "Time to first token",
        "How long do callers wait, and how long did the conductor think?",
        Unit.SECONDS,
        (
            *_tail("", "time_to_first_token_seconds"),
            *_tail("expected", "expected_time_to_first_token_seconds"),
        ),
    ),
    Panel(
        "ttft_parts",
        "What first tokens wait for",
        "In line, for KV from the pool or from a prefill, for the rest to be computed?",
        Unit.SECONDS,
        (
            *_tail("in line", "prompt_wait_seconds"),
            *_tail("loading", "load_seconds", "pool"),
            *_tail("handed over", "load_seconds", "hand_off"),
            *_tail("computing", "prefill_seconds"),
        ),
    ),
    Panel(
        "tpot",
        "Time per output token",
        "How fast do answers run, and how long is a decode step?",
        Unit.SECONDS,
        (*_tail("token", "time_per_output_token_seconds"), *_tail("step", "step_seconds")),
    ),
    Panel(
        "requests",
        "Requests",
        "How many a second, and how did they end?",
        Unit.PER_SECOND,
        (Line("", Rate(GATEWAY["requests"])),),
        stacked=True,
    ),
    Panel(
        "transports",
        "Bytes moved",
        "By which way does KV travel?",
        Unit.BYTES_PER_SECOND,
        (
            Line("shared memory", Rate(NODE["opened_bytes"])),
            Line("tcp", Rate(NODE["data_sent_bytes"])),
            Line("ucx", Rate(NODE["ucx_sent_bytes"])),
            Line("gRPC", Rate(NODE["get_bytes"])),
        ),
        stacked=True,
    ),
    Panel(
        "tiers",
        "Memory and SSD",
        "How full are the tiers?",
        Unit.BYTES,
        (Line("used:", Now(NODE["tier_bytes"])), Line("of:", Now(NODE["tier_capacity_bytes"]))),
    ),
    Panel(
        "moves",
        "Blocks on the move",
        "What is stored, promoted, fetched, evicted?",
        Unit.PER_SECOND,
        tuple(
            Line(text, Rate(NODE[name]))
            for text, name in (
                ("sealed", "sealed_blocks"),
                ("to SSD", "stored_blocks"),
                ("from SSD", "promoted_blocks"),
                ("from HBM", "demoted_blocks"),
                ("from other nodes", "fetched_blocks"),
                ("evicted", "evicted_blocks"),
                ("damaged", "damaged_blocks"),
            )
        ),
    ),
    Panel(
        "decisions",
        "Decisions",
        "What did conductors answer?",
        Unit.PER_SECOND,
        (Line("", Rate(CONDUCTOR["decisions"])),),
        stacked=True,
    ),
    Panel(
        "decision_seconds",
        "Time to decide",
        "How long does a conductor take?",
        Unit.SECONDS,
        _tail("", "decision_seconds"),
    ),
    Panel(
        "open_requests",
        "Requests under way",
        "How busy are gateways and engines?",
        Unit.COUNT,
        (
            Line("at gateways", Now(GATEWAY["open_requests"])),
            Line("at engines", Now(ENGINE["running_requests"])),
        ),
    ),
)
# Where vLLM servers are watched: by their own /metrics, to which the connector adds these.
VLLM_PANELS = (
    Panel(
        "vllm_hit_rate",
        "vLLM: tokens from the pool",
        "Of the tokens that vLLM's own cache had not, how many were found, and how many loaded?",
        Unit.SHARE,
        (
            Line("found", Ratio(CONNECTOR["connector_hit_tokens"], _VLLM_ASKED)),
            Line("loaded", Ratio(CONNECTOR["connector_loaded_tokens"], _VLLM_ASKED)),
        ),
    ),
    Panel(
        "vllm_misses",
        "vLLM: why no more was loaded",
        "What ended each request's prefix in the pool?",
        Unit.PER_SECOND,
        (Line("", Rate(CONNECTOR["connector_miss"])),),
        stacked=True,
    ),
    Panel(
        "vllm_loads",
        "vLLM: time to load",
        "How long does a request's KV take to come?",
        Unit.SECONDS,
        _tail("", "connector_load_seconds"),
    ),
    Panel(
        "vllm_checks",
        "vLLM: KV that was compared",
        "How often was KV that could be loaded computed as well, and was it ever another?",
        Unit.PER_SECOND,
        (
            Line("of a new origin", Rate(CONNECTOR["connector_self_tests"])),
            Line("drawn at random", Rate(CONNECTOR["connector_audits"])),
            Line("wrong", Rate(CONNECTOR["connector_alarms"])),
        ),
    ),
    Panel(
        "vllm_saved",
        "vLLM: time to first token saved",
        "How many seconds of waiting has the pool saved, by what hits that were computed took?",
        Unit.SECONDS,
        (Line("saved", Now(CONNECTOR["connector_ttft_saved_seconds"])),),
        signed=True,
    ),
    Panel(
        "vllm_saved_gpu",
        "vLLM: GPU-seconds of prefill saved",
        "How many seconds of GPUs has the pool saved, by what hits that were computed took?",
        Unit.SECONDS,
        (Line("saved", Now(CONNECTOR["connector_gpu_saved_seconds"])),),
        signed=True,
    ),
)
