"""Logprobs as OpenAI's clients read them, of a completion and of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstore.gateway.http.growing import Said
from kvstore.gateway.http.refusal import BadField
from kvstore.gateway.http.text import Text
from kvstore.limits import SERVE_LOGPROBS_MAX


def check_room(top: int | None, tokens: int) -> None:
    """Raises `BadField` where the answers of a call, of so many tokens in all, would have more of
    them than one call may."""
    if top is None or tokens * (1 + top) <= SERVE_LOGPROBS_MAX:
        return
    raise BadField(
        "logprobs",
        f"logprobs: of {tokens} tokens and {top} beside each are more than the "
        f"{SERVE_LOGPROBS_MAX} of one call: write a lower max_tokens, or ask for fewer beside each",
    )


def of_completion(text: Text, said: Sequence[Said]) -> dict[str, Any]:
    """Each token is among its likeliest ones, also where it is one more than was asked for."""
    tops = []
    for one in said:
        top: dict[str, float] = {}
        for token, value in (*one.logprobs.top, (one.token, one.logprobs.logprob)):
            top.setdefault(text.spelled(token).text, value)  # the likelier of two with one text
        tops.append(top)
    return {
        "tokens": [text.spelled(one.token).text for one in said],
        "token_logprobs": [one.logprobs.logprob for one in said],
        "top_logprobs": tops,
        "text_offset": [one.offset for one in said],
    }


def of_chat(text: Text, said: Sequence[Said]) -> dict[str, Any]:
    content = []
    for one in said:
        top = [_of_token(text, token, value) for token, value in one.logprobs.top]
        content.append(_of_token(text, one.token, one.logprobs.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _of_token(text: Text, token: int, logprob: float) -> dict[str, Any]:
    spelled = text.spelled(token)
    found = None if spelled.utf8 is None else list(spelled.utf8)
    return {"token": spelled.text, "bytes": found, "logprob": logprob}
