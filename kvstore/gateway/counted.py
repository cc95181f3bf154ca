"""What the gateway's metrics say of a request that is over: each is counted once, whatever it took.

Only one that was answered to its end has tokens and times; of the others it is counted how they
ended. What was loaded is what was used: of a request that went on elsewhere, where it ran last.
"""

from __future__ import annotations

from kvstore.errors import Invalid, KVStoreError, Overloaded
from kvstore.gateway.caller import CallerLeft
from kvstore.gateway.request import Outcome
from kvstore.telemetry import Telemetry


def count(telemetry: Telemetry, prompt_tokens: int, end: Outcome | KVStoreError) -> None:
    """Of a request with so long a prompt, how it ended."""
    add, observe = telemetry.add, telemetry.observe
    add("requests", label=how(end))
    if isinstance(end, KVStoreError):
        return
    if not end.untold:  # else it would count as one of which nothing was found
        add("request_prompt_tokens", prompt_tokens)
        add("request_cached_tokens", end.pool_tokens)
        add("request_expected_tokens", end.expected_tokens)
    add("request_output_tokens", len(end.tokens))
    add("retries", end.lost)
    observe("request_seconds", end.seconds)
    if end.tokens:
        observe("time_to_first_token_seconds", end.ttft_seconds)
    if end.expected_seconds:
        observe("expected_time_to_first_token_seconds", end.expected_seconds)
    if len(end.tokens) > 1:
        after = (end.seconds - end.ttft_seconds) / (len(end.tokens) - 1)
        observe("time_per_output_token_seconds", after)


def how(end: Outcome | KVStoreError) -> str:
    """In a word."""
    if isinstance(end, Outcome):
        return "whole"
    if isinstance(end, CallerLeft):
        return "left"
    return "refused" if isinstance(end, Overloaded | Invalid) else "failed"
