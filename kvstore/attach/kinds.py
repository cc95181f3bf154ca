"""The kinds of servers that are watched: what each calls its counters, and how it tells of blocks.

What a server is, it says itself: every counter of its page begins with its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kvstore.attach.asked import Asked


@dataclass(frozen=True, slots=True)
class Sample:
    """A sum over labels, or over those samples alone whose label has one of these values: "" where
    they have no such label."""

    name: str
    label: str = ""
    values: tuple[str, ...] = ()

    def counts(self, labels: Mapping[str, str]) -> bool:
        return not self.label or labels.get(self.label, "") in self.values


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """`needed` are counters without which nothing can be said. `tells_twice` where it tells of a
    block that it computes although it has it, `in_tree` where an answer is told of at its end."""

    name: str
    counters: Mapping[str, Sample]  # by the names that `Asked` has
    needed: tuple[str, ...]
    running: tuple[Sample, ...]  # requests, those that wait among them
    tells_twice: bool
    in_tree: bool

    @property
    def prefix(self) -> str:
        return f"{self.name.lower()}:"


_VLLM_PREFILL = "vllm:request_prefill_time_seconds"
_SGLANG_CACHED = "sglang:cached_tokens_total"
_SGLANG_STAGE = "sglang:per_stage_req_latency_seconds"
_SGLANG_PREFILL = "stage", ("prefill_forward",)
_SGLANG_STORAGE = Sample(_SGLANG_CACHED, "cache_source", ("storage",))

VLLM = Kind(
    "vLLM",
    {
        "queries": Sample("vllm:prefix_cache_queries_total"),
        "hits": Sample("vllm:prefix_cache_hits_total"),
        "pool_queries": Sample("vllm:external_prefix_cache_queries_total"),
        "pool_hits": Sample("vllm:external_prefix_cache_hits_total"),
        "generated": Sample("vllm:generation_tokens_total"),
        "prompts": Sample("vllm:time_to_first_token_seconds_count"),
        "first_token_seconds": Sample("vllm:time_to_first_token_seconds_sum"),
        "prefill_seconds": Sample(f"{_VLLM_PREFILL}_sum"),
        "prefills": Sample(f"{_VLLM_PREFILL}_count"),
        "prefilled": Sample("vllm:request_prefill_kv_computed_tokens_sum"),
        "preempted": Sample("vllm:num_preemptions_total"),
    },
    ("queries", "hits"),
    (Sample("vllm:num_requests_running"), Sample("vllm:num_requests_waiting")),
    tells_twice=True,
    in_tree=False,
)
# It has no sample of what has not happened yet, so none is needed.
SGLANG = Kind(
    "SGLang",
    {
        "queries": Sample("sglang:prompt_tokens_total"),
        # Of older ones no sample says where tokens were cached.
        "hits": Sample(_SGLANG_CACHED, "cache_source", ("device", "host", "total", "")),
        "pool_queries": _SGLANG_STORAGE,  # it does not count what it asked for
        "pool_hits": _SGLANG_STORAGE,
        "generated": Sample("sglang:generation_tokens_total"),
        "prompts": Sample("sglang:num_requests_total"),
        "first_token_seconds": Sample("sglang:time_to_first_token_seconds_sum"),
        "prefill_seconds": Sample(f"{_SGLANG_STAGE}_sum", *_SGLANG_PREFILL),
        "prefills": Sample(f"{_SGLANG_STAGE}_count", *_SGLANG_PREFILL),
        "prefilled": Sample("sglang:realtime_tokens_total", "mode", ("prefill_compute",)),
        "preempted": Sample("sglang:num_retracted_requests_total"),
    },
    (),
    (Sample("sglang:num_running_reqs"), Sample("sglang:num_queue_reqs")),
    tells_twice=False,
    in_tree=True,
)
KINDS = (VLLM, SGLANG)
for _kind in KINDS:
    assert _kind.counters.keys() == {one.name for one in fields(Asked)}
