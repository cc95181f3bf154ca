"""What a call asks for, and of /v1/completions how it says so, checked field by field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvstore.gateway.http import fields
from kvstore.gateway.http.refusal import BadField
from kvstore.gateway.http.template import Conversation
from kvstore.gateway.sampling import Sampling
from kvstore.limits import SERVE_PROMPTS_MAX, SERVE_TOP_LOGPROBS_MAX

TOKENS_UNSAID = 16  # of a completion for which nobody names a length: OpenAI's

Prompt: TypeAlias = str | tuple[int, ...] | Conversation

FIELDS = fields.Fields(
    read=fields.COMMON | {"prompt", "max_tokens", "logprobs"},
    only=fields.ONLY
    | {
        "best_of": (1, "1"),
        "echo": (False, "false"),
        "suffix": ("", "null"),
    },
    no_matter=fields.NO_MATTER,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One call's."""

    model: str
    prompts: tuple[Prompt, ...]
    max_tokens: int | None = None  # None: as many as fit
    limit: str = "max_tokens"  # the field that says it
    tokens_unsaid: int | None = None  # where none does, no more than these
    stream: bool = False
    include_usage: bool = False  # of a stream: its last chunk has it
    ignore_eos: bool = False  # vLLM's: go on behind an end token
    stops: tuple[str, ...] = ()  # texts at which it ends, without them
    choices: int = 1  # answers to each prompt: greedy tokens are the same each time
    sampling: Sampling | None = None  # None: greedy
    logprobs: int | None = None  # of each token, and of so many of the likeliest; None: none


def asked(body: bytes, models: Sequence[str]) -> Asked:
    """Raises `Invalid`, as a `BadField` where one field is why; `models` are those that are
    served."""
    found = fields.object_of(body)
    model = fields.model_of(found, models)
    FIELDS.check(found)
    stream = fields.flag(found, "stream")
    return Asked(
        model=model,
        prompts=_prompts(found.get("prompt")),
        max_tokens=fields.tokens_of(found, "max_tokens"),
        tokens_unsaid=TOKENS_UNSAID,
        stream=stream,
        include_usage=fields.include_usage(found, stream),
        ignore_eos=fields.flag(found, "ignore_eos"),
        stops=fields.stops_of(found),
        choices=fields.choices_of(found),
        sampling=fields.sampling_of(found),
        logprobs=fields.count_of(found, "logprobs", SERVE_TOP_LOGPROBS_MAX),
    )


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """Of one text, one list of tokens, or a list of either."""
    several = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    each = value if several else [value]
    if len(each) > SERVE_PROMPTS_MAX:
        raise BadField(
            "prompt", f"prompt: {len(each)} in one call; send {SERVE_PROMPTS_MAX} at most"
        )
    return tuple(map(_prompt, each))


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str) and value:
        return fields.text_of("prompt", value)
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        return tuple(value)
    raise BadField("prompt", "prompt: write a text, a list of token ids, or a list of those")
