"""Answers as OpenAI's clients read them: completions, chunks of a stream, and the models."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.gateway.request import Outcome

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What all parts of one say."""

    key: str  # of this call
    model: str
    created: int  # seconds since 1970

    @property
    def id(self) -> str:
        return f"cmpl-{self.key}"

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """Chunks that a stream of so many choices begins with."""
        return []

    def whole(
        self, texts: Sequence[str], reasons: Sequence[str], usage: dict[str, Any]
    ) -> dict[str, Any]:
        ends = enumerate(zip(texts, reasons, strict=True))
        choices = [self._choice(index, text, reason) for index, (text, reason) in ends]
        return self._said(self._object(), choices) | {"usage": usage}

    def chunk(self, index: int, text: str, reason: str | None = None) -> dict[str, Any]:
        """More text of one choice, the last with the reason why it ends."""
        return self._said(self._chunk_object(), [self._delta(index, text, reason)])

    def last_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._said(self._chunk_object(), []) | {"usage": usage}

    def _object(self) -> str:
        return "text_completion"

    def _chunk_object(self) -> str:
        return "text_completion"

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    def _delta(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return self._choice(index, text, reason)

    def _said(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class ChatAnswer(Answer):
    """The next message of a conversation."""

    @property
    def id(self) -> str:
        return f"chatcmpl-{self.key}"

    def opening(self, choices: int) -> list[dict[str, Any]]:
        said = {"role": "assistant", "content": ""}
        return [
            self._said(self._chunk_object(), [_message("delta", said, index, None)])
            for index in range(choices)
        ]

    def _object(self) -> str:
        return "chat.completion"

    def _chunk_object(self) -> str:
        return "chat.completion.chunk"

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        said = {"role": "assistant", "content": text, "refusal": None}
        return _message("message", said, index, reason)

    def _delta(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return _message("delta", {"content": text} if text else {}, index, reason)


def _message(kind: str, said: dict[str, Any], index: int, reason: str | None) -> dict[str, Any]:
    return {"index": index, kind: said, "logprobs": None, "finish_reason": reason}


def reason_of(outcome: Outcome, eos: Collection[int]) -> str:
    """Why it ended, as its engine says, or else as its last token does."""
    if outcome.reason:
        return outcome.reason
    return "stop" if outcome.tokens and outcome.tokens[-1] in eos else "length"


def usage_of(
    prompts: Sequence[Sequence[int]], outcomes: Sequence[Outcome], made: int
) -> dict[str, Any]:
    """Cached are those tokens of prompts that earlier requests left in the pool; `made` are those
    of answers."""
    prompt = sum(map(len, prompts))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(one.pool_tokens for one in outcomes)},
    }


def models(name: str, created: int) -> dict[str, Any]:
    """The one that is served."""
    one = {"id": name, "object": "model", "created": created, "owned_by": "moonpool"}
    return {"object": "list", "data": [one]}


def event(value: dict[str, Any]) -> bytes:
    """One of a stream."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
