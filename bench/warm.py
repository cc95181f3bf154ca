"""Time to first token with a warm pool, and with a pool that is too slow to be of use.

Three real vLLM engines: one without a connector, one whose pool has most of each prompt, and one
whose pool has it too but gives it more slowly than vLLM computes it. vLLM's own prefix cache is
off, so that every hit is the pool's. Each round every engine is given the same prompt by itself.

With a warm pool the first token must come sooner than without one; with the slow pool not later
than the noise: the connector prices both and computes where that is quicker.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.engine import Prompts, Say, Shape
from bench.guest import Guest
from bench.pool import running_node
from bench.report import Goal, Report, Row
from bench.rounds import WARM_ROUNDS, Rounds, measure
from kvstore.limits import GiB

RUNS = 20
GOAL = 1.05  # the slow pool's
GOAL_WARM = 1.0
LEARN = 4  # loads after which a price is known
BLOCK_TOKENS = 64
WARM_SHARE = 0.9  # of the prompts' blocks, that are loaded from a pool which is warm


@dataclass(frozen=True, slots=True)
class Sizes:
    shape: Shape = field(default_factory=lambda: Shape(8, 512, 8, 4, 64, 1408))
    prompt_tokens: int = 1100
    slow_share: float = 3.0  # the slow pool takes so many times what vLLM takes

    @property
    def stored_tokens(self) -> int:
        """Of a prompt, in full blocks."""
        return self.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS

    def dram(self, prompts: int) -> str:
        """Room for so many of them, and for what slots and slabs have beside KV."""
        kv = prompts * self.prompt_tokens * self.shape.token_bytes
        return f"{(kv * 5 // 4 // GiB + 1)}GiB"


def run(runs: int, say: Say, sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    dice = Prompts(sizes.prompt_tokens)
    prompts = [dice.next() for _ in range(runs + LEARN + 2)]
    options: dict[str, Any] = {"enable_prefix_caching": False}
    trusting = {"self_test": False, "audit_rate": 0.0}  # all hits are loaded, if they pay
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as scratch:
        base = Path(scratch)
        folder = sizes.shape.make(base / "model")
        with running_node(sizes.dram(len(prompts))) as node:
            say("starting three vLLM engines")
            with Guest(folder, base / "without.log", None, **options) as without:
                without.run(prompts[:1], 1)
                alone = without.run(prompts[:1], 1)
                slow = sizes.prompt_tokens * sizes.shape.token_bytes / (sizes.slow_share * alone)
                with (
                    Guest(folder, base / "warm.log", node, extra=trusting, **options) as warm,
                    Guest(
                        *(folder, base / "slow.log", node),
                        extra=trusting,
                        load_bytes_per_second=slow,
                        **options,
                    ) as throttled,
                ):
                    for prompt in prompts:  # the first engine to compute one publishes it
                        warm.run([prompt], 1)
                    for prompt in prompts[:LEARN]:
                        throttled.run([prompt], 1)
                    left = iter(prompts[LEARN:])
                    now: list[tuple[int, ...]] = []

                    def before(_: int) -> None:
                        now[:] = [next(left)]

                    rounds = measure(
                        {
                            "without": lambda: without.run(now, 1),
                            "warm": lambda: warm.run(now, 1),
                            "slow": lambda: throttled.run(now, 1),
                        },
                        runs,
                        say,
                        before=before,
                    )
                    figures = {"warm": warm.figures(), "slow": throttled.figures()}
    if figures["warm"]["hit_tokens"] < WARM_SHARE * (runs + WARM_ROUNDS) * sizes.stored_tokens:
        raise RuntimeError("the warm pool did not have the prompts that it was asked for")
    return Report(
        name="warm",
        unit="ms",
        against="the same vLLM without a connector",
        ratio_is="time to first token with the pool / without",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=tuple(_row(name, rounds, figures[name], sizes, slow) for name in ("warm", "slow")),
    )


def _row(name: str, rounds: Rounds, figures: dict[str, float], sizes: Sizes, slow: float) -> Row:
    if not figures["hit_tokens"]:  # a pool that nobody loads from is neither warm nor slow
        raise RuntimeError(f"nothing was loaded from the {name} pool")
    return Row(
        name=f"{name} pool",
        goal=GOAL_WARM if name == "warm" else None,
        sizes={"shape": asdict(sizes.shape), "prompt_tokens": sizes.prompt_tokens}
        | ({"bytes_per_second": slow} if name == "slow" else {}),
        runs=rounds.count,
        value=1e3 * rounds.median(name),
        limit=1e3 * rounds.median("without"),
        ratio=rounds.ratio(name, "without"),
        spread=rounds.spread(name, "without"),
        also={key: figures[key] for key in ("query_tokens", "hit_tokens", "failed_tokens")},
    )
