"""What is asked of engines, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from kvstore.gateway.sampling import Sampling
from kvstore.logprobs import Logprobs

# Is told of each token as it comes, with its logprobs where the request asks for them.
Told: TypeAlias = Callable[[int, Logprobs | None], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how it is to be gone on with; `id` is the caller's own, of those that run."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    ignore_eos: bool = False
    without_pool: bool = False  # computed by one engine alone, and nothing is published
    ttft_ms: int = 0  # wanted until the first token; 0: what the conductor holds to
    tpot_ms: int = 0  # and for each one after it
    trace: str = ""  # the span of whoever asks; empty: a trace begins here
    client: str = ""  # whose it is: where there is too little, engines are shared fairly
    salt: str = ""  # prompts of another salt share no KV with it
    sampling: Sampling | None = None  # None: the likeliest tokens
    logprobs: int | None = None  # with each token, its own and those of so many of the likeliest
    # Nobody asked for `max_new_tokens`: an engine that has place for fewer gives those.
    as_many_as_fit: bool = False
    open_ended: bool = False  # and it is no bound that an answer is likely to come to
    adapter: str = ""  # a LoRA adapter, by the name that vLLM's servers have for it; empty: none

    @property
    def logprobs_max(self) -> int:
        """How many its answer may come with, those of its tokens counted."""
        return 0 if self.logprobs is None else self.max_new_tokens * (1 + self.logprobs)


@dataclass(slots=True)
class Outcome:
    """What came of one. Tokens of the prompt are counted where it ran last."""

    tokens: list[int] = field(default_factory=list)
    ttft_seconds: float = 0.0
    seconds: float = 0.0  # until the last token
    untold: bool = False  # whoever ran it last has not said what it had of the prompt
    pool_tokens: int = 0  # loaded from blocks that earlier requests left
    hand_off_tokens: int = 0  # prefilled for this request and loaded behind the watermark
    computed_tokens: int = 0  # prompt tokens the decode engine computed
    loaded_bytes: int = 0
    miss: str = ""  # why no more was in the pool, as the engine says that looked there
    reason: str = ""  # why it ended: stop or length; empty where the engine does not say
    engines: list[str] = field(default_factory=list)  # addresses it was sent to, in that order
    tries: int = 0  # 1, unless an engine went away
    lost: int = 0  # engines that went away under it, and it went on elsewhere
    blocks: tuple[bytes, ...] = ()  # hashes of the prompt's full ones, as engines of one kind say
    block_tokens: int = 0  # of each of those
    expected_tokens: int = 0  # of the prompt, that the conductor thought were in the pool
    expected_seconds: float = 0.0  # until its first token, as the conductor thought; 0: unasked

    def begin_at(self, address: str) -> None:
        """It is sent there, where nobody has said yet what there is of the prompt."""
        self.engines.append(address)
        self.untold = True
        self.pool_tokens = self.hand_off_tokens = self.computed_tokens = 0

    def count_prompt(self, tokens: int) -> None:
        """Of what was loaded and computed only so many count: behind them is the answer so far,
        which was part of what it ran with where it went on elsewhere."""
        self.pool_tokens = min(self.pool_tokens, tokens)
        self.hand_off_tokens = min(self.hand_off_tokens, tokens - self.pool_tokens)
        left = tokens - self.pool_tokens - self.hand_off_tokens
        self.computed_tokens = min(self.computed_tokens, left)
