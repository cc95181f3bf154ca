"""A request, and the sequence it becomes: what is known, and how much of it is in the pages.

`tokens` only grows, and `computed_tokens` counts those whose KV is in the pages, from the start.
The newest token has been sampled but not fed, so a finished sequence has computed all but one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from .pages import BlockTable

NO_PAGES: BlockTable = np.empty(0, dtype=np.int32)


class Finish(enum.StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # an end token
    LENGTH = "length"  # max_new_tokens
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asks for. Greedy; ends after max_new_tokens or at an id of eos_ids."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    due: float = 0.0  # of those that wait the least runs first: see `turn`
    follows: bool = False  # its prompt is computed elsewhere, and comes as that goes on
    salt: str = ""  # prompts of another share no KV with it
    logprobs: int | None = None  # with each token, its own and those of so many of the likeliest

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "eos_ids", frozenset(self.eos_ids))

    @property
    def length(self) -> int:
        """Tokens there is room to make for: the prompt and all new ones."""
        return len(self.prompt) + self.max_new_tokens


@dataclass(eq=False, slots=True)
class Sequence:
    """A request under way. Only the engine changes it; hooks read it.

    block_table is int32 (pages,), read-only, in token order: token t lies in page
    block_table[t // page_tokens] at offset t % page_tokens. It is empty before admission.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    cached_tokens: int = 0  # of its prompt, those that `admitted` found in the pool at first
    block_table: BlockTable = field(default_factory=lambda: NO_PAGES)
    finish: Finish | None = None
    loading: bool = False  # its prefix is still landing in its pages: no step may run it
    came: int = 0  # how many were taken in before it
    gave_way: int = 0  # times that it gave its pages up, to enter anew

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.request.prompt)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def output(self) -> list[int]:
        """The generated tokens so far."""
        return self.tokens[self.prompt_len :]

    @property
    def answering(self) -> bool:
        """Whether it has tokens of its answer. If it enters then, it gave way."""
        return len(self.tokens) > self.prompt_len

    @property
    def follows(self) -> bool:
        """Whether its prompt comes from elsewhere, and so takes no room of a step on entry."""
        return self.request.follows and not self.answering

    @property
    def begun(self) -> bool:
        """Whether anything of it was computed here."""
        return self.computed_tokens > self.cached_tokens

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.computed_tokens

    def room(self, page_tokens: int) -> int:
        """Tokens that its pages hold."""
        return len(self.block_table) * page_tokens

    def begins(self, other: Sequence) -> bool:
        """Whether the other's prompt begins with this one, and goes on; KV is of use to both."""
        mine, its = self.request.prompt, other.request.prompt
        if self.request.salt != other.request.salt or len(mine) >= len(its):
            return False
        return mine[-1] == its[len(mine) - 1] and mine == its[: len(mine)]

    def begin_anew(self) -> None:
        """It has no pages any more, and waits for others: not yet answering, as for its first."""
        self.computed_tokens, self.block_table, self.loading = 0, NO_PAGES, False
        self.gave_way += 1

    def append(self, token: int) -> None:
        """Take a sampled token, and finish if it is the last."""
        self.tokens.append(token)
        if token in self.request.eos_ids and not self.request.ignore_eos:
            self.finish = Finish.STOP
        elif len(self.tokens) == self.request.length:
            self.finish = Finish.LENGTH


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, end) of a sequence, computed in one step; `last` if it yields a token."""

    sequence: Sequence
    start: int
    end: int
    last: bool

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens[self.start : self.end]
