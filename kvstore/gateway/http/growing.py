"""One answer as its tokens come: pieces of its text, and with each what is told of its tokens.

A token is told of with the first character of its text, and where it has none, with what comes
next. So what a stream says of them is what one answer says, and of what a text to stop at cuts off
no token is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.gateway.http.stops import Stops
from kvstore.gateway.http.text import Text, Writing
from kvstore.logprobs import Logprobs


@dataclass(frozen=True, slots=True)
class Said:
    """One token of an answer, and what the model says of it."""

    token: int
    logprobs: Logprobs
    offset: int  # characters of the answer before the one that it is of, or begins with


@dataclass(frozen=True, slots=True)
class Piece:
    """What can be given out, the last with the reason why it is the last."""

    text: str = ""
    said: tuple[Said, ...] = ()
    reason: str | None = None


class Growing:
    """Behind one prompt."""

    def __init__(self, text: Text, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._writing, self._stops = Writing(text, prompt), Stops(stops)
        self._held: deque[Said] = deque()
        self._written = self._given = 0  # characters; what is between is held back

    @property
    def stopped(self) -> bool:
        """It has met a text to stop at, and is whole."""
        return self._stops.met

    def add(self, token: int, logprobs: Logprobs | None) -> Piece:
        """What the next token makes of it; of logprobs nothing is told where they are None."""
        if logprobs is not None:
            self._held.append(Said(token, logprobs, self._written))
        new = self._writing.add(token)
        self._written += len(new)
        text = self._stops.add(new)
        return Piece(text, self._told(text), "stop" if self.stopped else None)

    def end(self, reason: str) -> Piece:
        """What is left, once no more tokens come; `reason` is why."""
        text = self._stops.add(self._writing.end()) + self._stops.end()
        said = self._told(text)
        if self.stopped:
            return Piece(text, said, "stop")
        return Piece(text, (*said, *self._held), reason)

    def _told(self, text: str) -> tuple[Said, ...]:
        """Of tokens that this text is of, or begins."""
        self._given += len(text)
        said = []
        while self._held and self._held[0].offset < self._given:
            said.append(self._held.popleft())
        return tuple(said)
