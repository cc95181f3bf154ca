"""One request on its way: what came of it so far, and the messages that ask for the rest."""

from __future__ import annotations

import time

from kvstore.gateway.caller import Caller
from kvstore.gateway.request import Outcome, Request, Told
from kvstore.logprobs import Logprobs
from kvstore.wire.v1 import conductor_pb2, engine_pb2

Place = conductor_pb2.ScheduleReply.Place  # where an engine is, and which of those there


def nobody(token: int, logprobs: Logprobs | None) -> None:
    """Is told of tokens."""


class Otherwise(Exception):
    """An engine that made a token again made another of it, and would go on behind that."""


class Run:
    """From when it came on."""

    def __init__(
        self,
        request: Request,
        revision: str,
        told: Told,
        caller: Caller,
        outcome: Outcome | None = None,
    ) -> None:
        """`revision` is that of the weights that are to answer: whoever is at an address by now may
        have others."""
        self.request, self._revision, self._told, self.caller = request, revision, told, caller
        self.outcome, self.since = outcome or Outcome(), time.monotonic()
        self._waits_since = self.since
        self._again = False  # the next token is one that came before
        self._certain = 0  # leading tokens that are not made again
        self.lacking: set[str] = set()  # servers that have not the adapter

    @property
    def id(self) -> str:
        """Another one each time: an engine may still have it from the last."""
        tries = self.outcome.tries
        return self.request.id if tries == 1 else f"{self.request.id} try {tries}"

    @property
    def failures(self) -> int:
        """Tries that came to nothing, without those of servers that were not the right ones."""
        return self.outcome.tries - len(self.lacking)

    @property
    def waited_ms(self) -> int:
        """Since it came, or since it lost the engine that it had tokens from: it had its first in
        time, however long its answer has taken by now."""
        return round(1e3 * (time.monotonic() - self._waits_since))

    def lost(self) -> None:
        """Its engine went away."""
        if self.outcome.tokens:
            self._waits_since = time.monotonic()

    def token(self, token: int, logprobs: Logprobs | None) -> None:
        """Raises `Otherwise`: then the rest is to be asked for anew, behind all that came."""
        if self._again:
            self._again = False
            came = len(self.outcome.tokens)
            if token != self.outcome.tokens[-1] and came < self.request.max_new_tokens:
                self._certain = came
                raise Otherwise
            return
        self.outcome.tokens.append(token)
        if len(self.outcome.tokens) == 1:
            self.outcome.ttft_seconds = time.monotonic() - self.since
        self._told(token, logprobs)

    def prefill(self, turn: engine_pb2.Turn) -> engine_pb2.PrefillRequest:
        return engine_pb2.PrefillRequest(
            request_id=self.id,
            prompt=self._so_far(),
            turn=turn,
            cache_salt=self.request.salt,
            revision=self._revision,
        )

    def generate(self, turn: engine_pb2.Turn | None = None) -> engine_pb2.GenerateRequest:
        prompt = self._so_far()
        self._again = len(prompt) < len(self.request.prompt) + len(self.outcome.tokens)
        return engine_pb2.GenerateRequest(
            request_id=self.id,
            prompt=prompt,
            max_new_tokens=len(self.request.prompt) + self.request.max_new_tokens - len(prompt),
            ignore_eos=self.request.ignore_eos,
            without_pool=self.request.without_pool,
            turn=turn,
            cache_salt=self.request.salt,
            logprobs=self.request.logprobs,
            as_many_as_fit=self.request.as_many_as_fit,
            revision=self._revision,
        )

    def _so_far(self) -> list[int]:
        """The prompt, and what came behind it. The last token is made again: it may be the end,
        which engines know and this does not. One that was drawn would be another, and who draws
        tokens says with the last that it is. One that another engine made otherwise stands as it
        was told. Penalties for what came begin anew: as biases vLLM takes few of them."""
        tokens = self.outcome.tokens
        known = len(tokens) if self.request.sampling else max(self._certain, len(tokens) - 1)
        return [*self.request.prompt, *tokens[:known]]
