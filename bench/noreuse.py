"""What the connector costs vLLM where it can save nothing: no two prompts share a block.

Two real vLLM engines stand ready, one with the connector as anybody gets it (all settings default,
self-test and audit on) and one without; each round both are given the same number of new random
prompts, one engine after the other. The one with the connector looks every prompt up, finds
nothing, and publishes every block of prompts and replies.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.engine import Prompts, Say, Shape
from bench.guest import Guest
from bench.pool import running_node
from bench.report import Goal, Report, Row
from bench.rounds import measure

RUNS = 24
GOAL = 0.98


@dataclass(frozen=True, slots=True)
class Load:
    """What each engine is given in a round, all at once."""

    name: str
    requests: int
    prompt_tokens: int
    reply_tokens: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Sizes:
    shape: Shape = field(default_factory=lambda: Shape(8, 512, 8, 4, 64, 1408))
    loads: tuple[Load, ...] = (
        Load("prompts and replies", 8, 512, 64),
        Load("replies", 8, 65, 96),
    )
    dram: str = "1GiB"


def run(runs: int, say: Say, sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as scratch:
        base = Path(scratch)
        folder = sizes.shape.make(base / "model")
        say("starting two vLLM engines")
        with (
            running_node(sizes.dram) as node,
            Guest(folder, base / "without.log", None) as without,
            Guest(folder, base / "with.log", node) as guest,
        ):
            rows = [_row(guest, without, load, sizes.shape, runs, say) for load in sizes.loads]
    return Report(
        name="noreuse",
        unit="tokens/s",
        against="the same vLLM without a connector",
        ratio_is="throughput with the connector / throughput without",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


def _row(guest: Guest, without: Guest, load: Load, shape: Shape, runs: int, say: Say) -> Row:
    say(load.name)
    dice = Prompts(load.prompt_tokens, seed=load.prompt_tokens)

    def way(engine: Guest) -> float:
        return engine.run([dice.next() for _ in range(load.requests)], load.reply_tokens)

    before = guest.figures()
    rounds = measure({"with": lambda: way(guest), "without": lambda: way(without)}, runs, say)
    after = guest.figures()
    published = after["saved_blocks"] - before["saved_blocks"]
    if after["hit_tokens"] or not published:
        raise RuntimeError("the prompts were to share nothing and all to be published")
    tokens = load.requests * (load.prompt_tokens + load.reply_tokens)
    return Row(
        name=load.name,
        sizes=asdict(load) | {"shape": asdict(shape)},
        runs=rounds.count,
        value=tokens / rounds.median("with"),
        limit=tokens / rounds.median("without"),
        ratio=rounds.ratio("without", "with"),
        spread=rounds.spread("without", "with"),
        counted=load.counted,
        also={"published_blocks": published, "late_saves": after["late_saves"]},
    )
