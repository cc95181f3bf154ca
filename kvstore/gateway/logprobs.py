"""What engines say of the logprobs of their tokens, read one for each token.

Nothing of it is taken for what it should be: an answer that has not as many as were asked for, or
none, is raised as `Unavailable`, and another engine may do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstore.errors import Unavailable
from kvstore.logprobs import Logprobs
from kvstore.wire.v1 import engine_pb2

TOKEN_MAX = 2**32 - 1
_NAME = "token_id:"  # how vLLM writes a token that is to be told by its id
_MOST = 1e6  # of any logprob, either way: what is more is none, and nor is NaN
LEAST = -9_999.0  # as vLLM writes a logprob that is less than any number
_RETRY_MS = 1_000


def of_reply(address: str, reply: engine_pb2.GenerateReply, wanted: int | None) -> Logprobs | None:
    """What an engine of ours says with a token; `wanted` are how many of the likeliest beside it,
    None if nothing."""
    if wanted is None:
        return None
    said = reply.logprobs
    if not reply.HasField("logprobs") or len(said.top_tokens) > wanted:
        raise _bad(address, f"it has no logprobs, or more than {wanted} of the likeliest tokens'")
    if len(said.top_tokens) != len(said.top_logprobs):
        raise _bad(address, "its logprobs are not as many as their tokens")
    values = [_number(address, one) for one in said.top_logprobs]
    top = tuple(zip(said.top_tokens, values, strict=True))
    return Logprobs(_number(address, said.logprob), top)


def of_choice(
    address: str, choice: dict[str, Any], tokens: Sequence[int], wanted: int | None
) -> Sequence[Logprobs | None]:
    """What a vLLM server says of each of `tokens` in an event's choice."""
    if wanted is None or not tokens:
        return [None] * len(tokens)
    said = choice.get("logprobs")
    found = said if isinstance(said, dict) else {}
    lists: list[Any] = [found.get(one) for one in ("tokens", "token_logprobs", "top_logprobs")]
    for one in lists:
        if not isinstance(one, list) or len(one) != len(tokens):
            raise _bad(address, f"an event has not logprobs of each of its {len(tokens)} tokens")
    names, logprobs, tops = lists
    if names != [f"{_NAME}{token}" for token in tokens]:
        raise _bad(address, "an event has logprobs of other tokens than its own")
    return [
        Logprobs(_number(address, logprob), _likeliest(address, top, wanted))
        for logprob, top in zip(logprobs, tops, strict=True)
    ]


def of_rows(
    address: str,
    meta: dict[str, Any],
    shown: int,
    before: int,
    tokens: Sequence[int],
    wanted: int | None,
) -> Sequence[Logprobs | None]:
    """What an SGLang server says of each of `tokens`, which are those that an event shows `shown`
    of behind the `before` that are known."""
    if wanted is None or not tokens:
        return [None] * len(tokens)
    lists: list[Any] = [meta.get("output_token_logprobs")]
    if wanted:
        lists.append(meta.get("output_top_logprobs"))
    for one in lists:
        if not isinstance(one, list) or len(one) != shown:
            raise _bad(address, f"an event has not logprobs of each of its {shown} tokens")
    each = [_row(address, one) for one in lists[0][before:]]
    if [token for token, _ in each] != list(tokens):
        raise _bad(address, "an event has logprobs of other tokens than its own")
    tops = lists[1][before:] if wanted else [[]] * len(tokens)
    return [
        Logprobs(logprob, _first(address, top, wanted))
        for (_, logprob), top in zip(each, tops, strict=True)
    ]


def _first(address: str, top: Any, wanted: int) -> tuple[tuple[int, float], ...]:
    if not isinstance(top, list) or len(top) > wanted:
        raise _bad(address, f"it has not the logprobs of {wanted} of the likeliest tokens")
    return tuple(sorted((_row(address, one) for one in top), key=lambda one: -one[1]))


def _row(address: str, row: Any) -> tuple[int, float]:
    """A token and its logprob, which SGLang says in the other order."""
    if not isinstance(row, list) or len(row) < 2:
        raise _bad(address, "its logprobs are no rows")
    logprob, token = row[:2]
    if type(token) is not int or not 0 <= token <= TOKEN_MAX:
        raise _bad(address, f"{str(token)[:32]} is no id of a token")
    if type(logprob) is float and logprob < -_MOST:
        logprob = LEAST  # it underflowed
    return token, _number(address, logprob)


def _likeliest(address: str, top: Any, wanted: int) -> tuple[tuple[int, float], ...]:
    """vLLM adds the token that was drawn, first, also where it is none of the likeliest."""
    if not isinstance(top, dict) or len(top) > wanted + 1:
        raise _bad(address, f"it has not the logprobs of {wanted} of the likeliest tokens")
    each = [(_id(address, name), _number(address, value)) for name, value in top.items()]
    return tuple(sorted(each, key=lambda one: -one[1])[:wanted])


def _id(address: str, name: str) -> int:
    digits = name.removeprefix(_NAME)
    known = name != digits and len(digits) <= 10 and digits.isascii() and digits.isdecimal()
    if known and int(digits) <= TOKEN_MAX:
        return int(digits)
    raise _bad(address, f"{name[:32]!r} is no id of a token")


def _number(address: str, value: Any) -> float:
    if type(value) not in (int, float) or not -_MOST <= value <= _MOST:
        raise _bad(address, "its logprobs are no numbers")
    return float(value)


def _bad(address: str, what: str) -> Unavailable:
    return Unavailable(f"{address}: {what}", _RETRY_MS)
