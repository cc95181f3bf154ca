"""A vLLM server as the gateway asks it: a prompt of token ids, gone on with by the server's own.

Tokens come as vLLM numbers them, so whoever asked makes the text of them, whichever engine they are
of. An answer is whole where vLLM says why it ends; one that breaks off before that is not.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Any

from kvstore import traces
from kvstore.errors import Invalid, Unavailable
from kvstore.gateway.events import CONNECT_SECONDS, Call, model_len, refusal_of
from kvstore.gateway.logprobs import TOKEN_MAX, of_choice
from kvstore.gateway.run import Run
from kvstore.gateway.sampling import Sampling
from kvstore.wire.v1 import engine_pb2 as pb

PATH = "/v1/completions"
RANK = "X-data-parallel-rank"  # of the engines behind one server, which one is meant
# What a server else takes from its model's generation_config.json, where a call does not say it:
# engines of ours know none of it, and an answer is not to depend on who gives it.
PLAIN = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}  # -1: all tokens
REASONS = ("stop", "length")  # for which an answer is whole
_RETRY_MS = 1_000


def generate(
    address: str, wanted: pb.GenerateRequest, run: Run, seconds: float, rank: int | None = None
) -> None:
    """The run is told of each token. Raises whatever goes wrong by its type."""
    if wanted.without_pool:
        raise Invalid(f"{address}: whether a vLLM server uses the pool is its own setting")
    answer = _Answer(address, wanted, run)
    try:
        answer.fetch(seconds, rank)
    except Invalid:
        # Nothing asks vLLM for as many as fit: of a completion that says null it makes 16 tokens.
        room = 0
        if wanted.as_many_as_fit and not answer.begun:
            room = model_len(address, CONNECT_SECONDS) - len(wanted.prompt)
        if not 0 < room < wanted.max_new_tokens:
            raise
        wanted.max_new_tokens = room
        _Answer(address, wanted, run).fetch(seconds, rank)


def body_of(wanted: pb.GenerateRequest, sampling: Sampling | None) -> dict[str, Any]:
    """No model is named: a server takes what it serves."""
    body: dict[str, Any] = {
        "prompt": list(wanted.prompt),
        "max_tokens": wanted.max_new_tokens,
        "ignore_eos": wanted.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        # By which the connector tells conductors of it: so it counts once.
        "kv_transfer_params": {"moonpool": {"request": wanted.request_id}},
    }
    if wanted.cache_salt:
        body["cache_salt"] = wanted.cache_salt
    if wanted.HasField("logprobs"):
        # By their ids, for two tokens may have one text.
        body |= {"logprobs": wanted.logprobs, "return_tokens_as_token_ids": True}
    drawn = {"temperature": 0} if sampling is None else asdict(sampling)
    body |= PLAIN | {name: value for name, value in drawn.items() if value is not None}
    return body


class _Answer:
    """As it comes. Nothing of it is taken for what it should be."""

    def __init__(self, address: str, wanted: pb.GenerateRequest, run: Run) -> None:
        self._address, self._wanted, self._run = address, wanted, run
        self._left, self._prompt = wanted.max_new_tokens, len(wanted.prompt)
        self.begun = False
        self.reason = ""  # why it ends, once all tokens are told

    def fetch(self, seconds: float, rank: int | None) -> None:
        """All of it."""
        headers = {} if rank is None else {RANK: str(rank)}
        if parent := traces.traceparent():
            headers[traces.KEY] = parent
        body = body_of(self._wanted, self._run.request.sampling)
        with closing(Call(self._address, seconds)) as call, self._run.caller.waits_for(call):
            try:
                for event in call.events(PATH, body, headers):
                    self.begun = True
                    self._take(event)
            except Unavailable:
                if not self.reason:
                    raise  # else all tokens have come, and what is missing is what they took
            if not self.reason:
                raise self._bad("it said that all is told, and not why")
            self._run.outcome.reason = self.reason

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise self._failed(event["error"])
        if isinstance(event.get("usage"), dict):
            self._used(event["usage"])
        choices = event.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            raise self._bad("an event has not one choice")
        for choice in choices:
            self._choice(choice)

    def _choice(self, choice: Any) -> None:
        tokens = choice.get("token_ids") if isinstance(choice, dict) else None
        if not isinstance(tokens, list) or len(tokens) > self._left:
            raise self._bad(f"an event has no token_ids, or more than the {self._left} left")
        if not all(type(one) is int and 0 <= one <= TOKEN_MAX for one in tokens):
            raise self._bad("token_ids are no ids of tokens")
        said = of_choice(self._address, choice, tokens, self._run.request.logprobs)
        self._left -= len(tokens)
        for token, logprobs in zip(tokens, said, strict=True):
            self._run.token(token, logprobs)
        reason = choice.get("finish_reason") or (None if self._left else "length")
        if reason is None:
            return
        if reason not in REASONS:
            raise self._bad(f"it ended by {str(reason)[:32]!r}")
        self.reason = reason

    def _used(self, usage: dict[str, Any]) -> None:
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is int and 0 <= cached <= self._prompt:
            out = self._run.outcome
            out.pool_tokens, out.computed_tokens = cached, self._prompt - cached

    def _failed(self, error: Any) -> Exception:
        said = error if isinstance(error, dict) else {}
        code, words = said.get("code"), said.get("message")
        status = code if type(code) is int else 500
        return refusal_of(self._address, status, words if isinstance(words, str) else "it failed")

    def _bad(self, what: str) -> Unavailable:
        return Unavailable(f"{self._address}: {what}", _RETRY_MS)
