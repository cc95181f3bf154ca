"""What the connector costs vLLM where it can save nothing: no two prompts share a block.

A real vLLM has the connector as anybody gets it (all settings default, self-test and audit on): it
looks every prompt up, finds nothing, and publishes every block of prompts and replies. Each round
it is given new random prompts, and as many more while its connector is taken off. Another process,
which never had one, is given as many and printed: two processes that do the same were seen to
differ by a quarter, each the same from round to round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
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
            rows = [
                row
                for load in sizes.loads
                for row in _rows(guest, without, load, sizes.shape, runs, say)
            ]
    return Report(
        name="noreuse",
        unit="tokens/s",
        against="the same vLLM while its connector is off",
        ratio_is="throughput with the connector / throughput without",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


def _rows(guest: Guest, without: Guest, load: Load, shape: Shape, runs: int, say: Say) -> list[Row]:
    say(load.name)
    dice = Prompts(load.prompt_tokens, seed=load.prompt_tokens)

    def way(run: Callable[[list[tuple[int, ...]], int], float]) -> float:
        return run([dice.next() for _ in range(load.requests)], load.reply_tokens)

    before = guest.figures()
    ways = {
        "with": lambda: way(guest.run),
        "off": lambda: way(guest.run_without),
        "without": lambda: way(without.run),
    }
    rounds = measure(ways, runs, say)
    after = guest.figures()
    published = after["saved_blocks"] - before["saved_blocks"]
    if after["hit_tokens"] or not published:
        raise RuntimeError("the prompts were to share nothing and all to be published")
    tokens = load.requests * (load.prompt_tokens + load.reply_tokens)
    facts = asdict(load) | {"shape": asdict(shape)}
    also = {"published_blocks": published, "late_saves": after["late_saves"] - before["late_saves"]}

    def row(name: str, limit: str, counted: bool) -> Row:
        return Row(
            *(name, facts, rounds.count),
            value=tokens / rounds.median("with"),
            limit=tokens / rounds.median(limit),
            ratio=rounds.ratio(limit, "with"),
            spread=rounds.spread(limit, "with"),
            counted=counted,
            also=also,
        )

    return [row(load.name, "off", True), row(f"{load.name}, another process", "without", False)]
