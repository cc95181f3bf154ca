"""What this engine's steps cost, found out before it serves: prompts that nobody asked for are run.

They are of made-up tokens, and the pool neither brings nor gets any of their KV. Conductors are
told what comes out, so their first choices go by what this machine takes and not by a guess; and
for what is slow the first time only, memory to be had and kernels to be compiled, no request waits.

Prompts grow for as long as the next is thought to take no longer than `SECONDS`, and at last some
short ones are decoded together. A model that is slow here is run for the first of them alone, since
nobody is served meanwhile. Each is run twice, and of equal steps the shortest counts: whatever else
goes on here only adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.measured import decode_cost, prefill_cost
from kvstore.core.model_shape import ModelShape
from kvstore.errors import ConfigError

from .config import ModelConfig
from .core import EngineCore
from .orders import STEP, Admit, encode
from .pool import Pool
from .pool_use import PoolUse
from .sequence import Request
from .team import SOLO, Team
from .telling import Telling

FIRST, GROWS = 16, 2  # tokens of the first prompt, and the factor to each next
SECONDS = 0.25  # that a prompt may take
NEW_TOKENS = 5  # of each: one of its prefill, and of a decode step each other
TOGETHER = 8  # prompts that are decoded as one batch
RUNS = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one engine."""

    prefill: PrefillCost
    decode: DecodeCost

    def __str__(self) -> str:
        prompt, step = self.prefill.seconds(1_000, 0), self.decode.seconds(1, 1_000)
        return f"1,000 tokens prefill in {1e3 * prompt:.3g} ms, and decode by {1e3 * step:.3g} ms"


class Rehearsal:
    """At rank 0, once all have met, and before a `Worker` has the core, which has no request then
    and none afterwards."""

    def __init__(self, core: EngineCore, pool: Pool, team: Team = SOLO) -> None:
        self._core, self._pool, self._team = core, pool, team
        self.heard = _Heard()

    def run(self) -> Costs:
        """Takes about a second, and where kernels are compiled as long as that takes.

        Raises `ConfigError` where there is no room for the first prompt.
        """
        room = self._core.scheduler.limits.max_request_tokens - NEW_TOKENS
        if room < FIRST:
            raise ConfigError(f"{room + NEW_TOKENS} tokens are no room to serve: give more --pages")
        self._core.hooks = Telling(self._pool, self.heard)
        tokens = FIRST
        self._compute(1, tokens)
        while GROWS * tokens <= room and GROWS * self.heard.prefills[tokens, 0] <= SECONDS:
            tokens *= GROWS
            self._compute(1, tokens)
        if tokens >= TOGETHER * FIRST:  # it is quick enough for as many tokens at once
            self._compute(TOGETHER, FIRST)
        shape = _shape(self._core.model.config)
        prefills, steps = self.heard.prefills.items(), self.heard.steps.items()
        return Costs(
            prefill_cost(shape, [(*done, seconds) for done, seconds in prefills]),
            decode_cost(shape, [(*done, seconds) for done, seconds in steps]),
        )

    def _compute(self, prompts: int, tokens: int) -> None:
        """So many at once of so many tokens each."""
        vocabulary = self._core.scheduler.limits.vocab_size
        prompt = tuple(token % vocabulary for token in range(1, tokens + 1))
        for _ in range(RUNS):
            for number in range(prompts):
                request = Request(f"rehearsal {number}", prompt, NEW_TOKENS, ignore_eos=True)
                use = PoolUse(enabled=False)
                self._team.tell(encode(Admit.of(request, use)))
                self._core.add(request)
                self._pool.expect(request.id, use)
            while not self._core.idle:
                self._team.tell(STEP)
                self._core.step()


def _shape(config: ModelConfig) -> ModelShape:
    """What it is to conductors and planners."""
    return ModelShape(
        *(config.architecture, config.layers, config.hidden_size),
        *(config.heads, config.kv_heads, config.head_dim),
        *(config.intermediate_size, config.vocab_size),
        tied=config.tied_embeddings,
    )


class _Heard:
    """A `Teller` that keeps how long steps took; of those that did the same, the shortest time."""

    def __init__(self) -> None:
        self.prefills: dict[tuple[int, int], float] = {}  # by new and prefix tokens
        self.steps: dict[tuple[int, int], float] = {}  # by sequences and context tokens of all

    def prefilled(self, new_tokens: int, prefix_tokens: int, seconds: float) -> None:
        done = new_tokens, prefix_tokens
        self.prefills[done] = min(seconds, self.prefills.get(done, seconds))

    def stepped(self, batch: int, context_tokens: int, seconds: float) -> None:
        done = batch, context_tokens
        self.steps[done] = min(seconds, self.steps.get(done, seconds))

    def accepted(
        self, request: str, tokens: int, prefix_tokens: int = 0, hashes: Sequence[bytes] = ()
    ) -> None:
        pass

    def began(self, request: str) -> None:
        pass

    def ended(self, request: str) -> None:
        pass

    def decoding(self, request: str) -> None:
        pass

    def given_up(self, request: str) -> None:
        pass

    def load(self, batch: int, context_tokens: int) -> None:
        pass

    def over(self, output_tokens: int) -> None:
        pass
