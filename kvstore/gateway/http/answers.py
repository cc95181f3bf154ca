"""Answers as OpenAI's clients read them: completions, chunks of a stream, and the models."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvstore.gateway.http.growing import Piece, Said
from kvstore.gateway.http.logprobs import of_chat, of_completion
from kvstore.gateway.http.text import Text
from kvstore.gateway.http.written import Lists
from kvstore.gateway.request import Outcome

DONE = b"data: [DONE]\n\n"
Shown: TypeAlias = dict[str, Any] | None  # of logprobs


@dataclass(slots=True)
class Whole:
    """One that does not leave before all of it has come."""

    logprobs: Lists | None  # as JSON: they are far more than the text
    texts: list[str] = field(default_factory=list)
    reason: str | None = None  # why it ended, once it has


@dataclass(frozen=True, slots=True)
class Answer:
    """What all parts of one say."""

    key: str  # of this call
    model: str
    created: int  # seconds since 1970
    text: Text
    has_logprobs: bool

    @property
    def id(self) -> str:
        return f"cmpl-{self.key}"

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """Chunks that a stream of so many choices begins with."""
        return []

    def begun(self) -> Whole:
        """One to which its pieces are to be added."""
        return Whole(Lists() if self.has_logprobs else None)

    def add(self, whole: Whole, piece: Piece) -> None:
        whole.texts.append(piece.text)
        whole.reason = piece.reason
        if whole.logprobs is not None:
            whole.logprobs.add(self._logprobs(piece.said))

    def whole(self, each: Sequence[Whole], usage: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for index, one in enumerate(each):
            piece = Piece("".join(one.texts), reason=one.reason)
            logprobs = None if one.logprobs is None else one.logprobs.whole
            choices.append(self._choice(index, piece, logprobs))
        return self._said(self._object(), choices) | {"usage": usage}

    def chunks(self, indices: Iterable[int], piece: Piece) -> Iterator[dict[str, Any]]:
        """More of choices that are the same."""
        logprobs = self._logprobs(piece.said) if piece.said else None
        for index in indices:
            yield self._said(self._chunk_object(), [self._delta(index, piece, logprobs)])

    def last_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._said(self._chunk_object(), []) | {"usage": usage}

    def _object(self) -> str:
        return "text_completion"

    def _chunk_object(self) -> str:
        return "text_completion"

    def _logprobs(self, said: Sequence[Said]) -> dict[str, Any]:
        return of_completion(self.text, said)

    def _choice(self, index: int, piece: Piece, logprobs: Shown) -> dict[str, Any]:
        ends = {"logprobs": logprobs, "finish_reason": piece.reason}
        return {"index": index, "text": piece.text} | ends

    def _delta(self, index: int, piece: Piece, logprobs: Shown) -> dict[str, Any]:
        return self._choice(index, piece, logprobs)

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
            self._said(self._chunk_object(), [_message("delta", said, index, None, None)])
            for index in range(choices)
        ]

    def _object(self) -> str:
        return "chat.completion"

    def _chunk_object(self) -> str:
        return "chat.completion.chunk"

    def _logprobs(self, said: Sequence[Said]) -> dict[str, Any]:
        return of_chat(self.text, said)

    def _choice(self, index: int, piece: Piece, logprobs: Shown) -> dict[str, Any]:
        said = {"role": "assistant", "content": piece.text, "refusal": None}
        return _message("message", said, index, logprobs, piece.reason)

    def _delta(self, index: int, piece: Piece, logprobs: Shown) -> dict[str, Any]:
        said = {"content": piece.text} if piece.text else {}
        return _message("delta", said, index, logprobs, piece.reason)


def _message(
    kind: str, said: dict[str, Any], index: int, logprobs: Shown, reason: str | None
) -> dict[str, Any]:
    return {"index": index, kind: said, "logprobs": logprobs, "finish_reason": reason}


def reason_of(outcome: Outcome, eos: Collection[int]) -> str:
    """Why it ended, as its engine says, or else as its last token does: `eos` are those that it was
    to end at."""
    if outcome.reason:
        return outcome.reason
    return "stop" if outcome.tokens and outcome.tokens[-1] in eos else "length"


def usage_of(
    prompts: Sequence[Sequence[int]], outcomes: Sequence[Outcome], made: int
) -> dict[str, Any]:
    """Cached are those tokens of prompts that earlier requests left in the pool, where it is known
    of all; `made` are those of answers."""
    prompt = sum(map(len, prompts))
    told = not any(one.untold for one in outcomes)
    cached = {"cached_tokens": sum(one.pool_tokens for one in outcomes)} if told else None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": cached,
    }


def models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The one that is served, and behind it adapters of it."""
    facts = {"object": "model", "created": created, "owned_by": "moonpool"}
    each = [
        {"id": name, **facts, **({"parent": names[0]} if at else {})}
        for at, name in enumerate(names)
    ]
    return {"object": "list", "data": each}


def event(value: dict[str, Any]) -> bytes:
    """One of a stream."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
