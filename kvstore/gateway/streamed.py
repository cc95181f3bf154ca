"""An answer of somebody else's server, as it comes over HTTP, event by event: what servers of all
kinds have in common.

Tokens come as the server numbers them, so whoever asked makes the text of them, whichever engine
they are of. Nothing is taken for what it should be, and an answer is whole where the server says
why it ends: one that breaks off before that is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from kvstore import traces
from kvstore.errors import Invalid, Unavailable
from kvstore.gateway.events import CONNECT_SECONDS, Call, failure_of, model_len
from kvstore.gateway.logprobs import TOKEN_MAX
from kvstore.gateway.run import Run
from kvstore.logprobs import Logprobs
from kvstore.wire.v1 import engine_pb2 as pb

REASONS = ("stop", "length")  # for which an answer is whole
_RETRY_MS = 1_000


class Streamed(ABC):
    """To one request, of a server of one kind, which says what it is asked and reads its events."""

    def __init__(
        self, address: str, wanted: pb.GenerateRequest, run: Run, attempt: int = 1
    ) -> None:
        """`attempt` says how often this server was asked for it, with this."""
        self.address, self.wanted, self.run, self.attempt = address, wanted, run, attempt
        self.left = wanted.max_new_tokens  # tokens
        self.reason = ""  # why it ends, once all tokens are told

    @abstractmethod
    def asked(self) -> tuple[str, Mapping[str, Any]]:
        """Where it is asked, and what."""

    @abstractmethod
    def take(self, event: dict[str, Any]) -> None:
        """One that is no error."""

    def fetch(self, seconds: float, headers: Mapping[str, str]) -> None:
        """All of it. Raises whatever goes wrong by its type."""
        path, body = self.asked()
        traced = {traces.KEY: parent} if (parent := traces.traceparent()) else {}
        with closing(Call(self.address, seconds)) as call, self.run.caller.waits_for(call):
            try:
                call.ask(path, body, {**headers, **traced})
                for event in call.events():
                    if "error" in event:
                        raise failure_of(self.address, event["error"])
                    self.take(event)
            except Unavailable:
                if not self.reason:
                    raise  # else all tokens have come, and what is missing is what they took
            if not self.reason:
                raise self.bad("it said that all is told, and not why")
            self.run.outcome.reason = self.reason

    def tokens(self, ids: Any) -> list[int]:
        """Of an event, that are new and are what they should be."""
        if not isinstance(ids, list) or len(ids) > self.left:
            raise self.bad(f"an event has no ids of tokens, or more than the {self.left} left")
        if not all(type(one) is int and 0 <= one <= TOKEN_MAX for one in ids):
            raise self.bad("an event has ids that are none of tokens")
        return ids

    def tell(self, ids: Sequence[int], said: Sequence[Logprobs | None], reason: Any) -> None:
        """Of new tokens, and of why they are the last, where they are."""
        self.left -= len(ids)
        for token, logprobs in zip(ids, said, strict=True):
            self.run.token(token, logprobs)
        reason = reason or (None if self.left else "length")
        if reason is None:
            return
        if reason not in REASONS:
            raise self.bad(f"it ended by {str(reason)[:32]!r}")
        self.reason = reason

    def had(self, cached: Any) -> None:
        """So many tokens of the prompt it did not compute."""
        prompt = len(self.wanted.prompt)
        if type(cached) is int and 0 <= cached <= prompt:
            out = self.run.outcome
            out.pool_tokens, out.computed_tokens = cached, prompt - cached
            out.untold = False

    def bad(self, what: str) -> Unavailable:
        return Unavailable(f"{self.address}: {what}", _RETRY_MS)


def generate(
    kind: type[Streamed],
    address: str,
    wanted: pb.GenerateRequest,
    run: Run,
    seconds: float,
    headers: Mapping[str, str] | None = None,
) -> None:
    """The run is told of each token. Raises whatever goes wrong by its type. Of as many tokens as
    fit no server is asked: one that refuses more is asked for those that it has place for."""
    if wanted.without_pool:
        raise Invalid(f"{address}: whether this server uses the pool is its own setting")
    answer = kind(address, wanted, run)
    try:
        answer.fetch(seconds, headers or {})
    except Invalid:
        room = 0
        if wanted.as_many_as_fit and answer.left == wanted.max_new_tokens:
            room = model_len(address, CONNECT_SECONDS) - len(wanted.prompt)
        if not 0 < room < wanted.max_new_tokens:
            raise
        wanted.max_new_tokens = room
        kind(address, wanted, run, attempt=2).fetch(seconds, headers or {})
