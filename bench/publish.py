"""What publishing costs a prefill: layer by layer into the pool, against the same prefill alone.

One engine computes each prompt twice in a row, once with the pool's hooks and once with none: same
weights, pages, chunks and tokens. With them it asks the pool for the prompt (nothing is there),
reserves its blocks, stores every layer as soon as it is computed, and seals each chunk, all inside
the time that is measured. Every block must have been sealed, and is removed off the clock; every
round has a new prompt. The node has just room enough for one, so the warm rounds touch all of it.

The row that counts computes with one thread; with one a core, a thread that waits for a busy
neighbour would be what is timed. The other row uses every core, so there the prefill is shorter and
the hooks, which are one thread's work, weigh more. Prefills differ from each other by more than the
hooks cost, so what the hooks took by themselves is told too.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine import Prompts, Say, Shape, check_published, prefill, torch_threads
from bench.pool import running_node
from bench.report import Goal, Report, Row
from bench.rounds import measure
from kvstore.client import Client
from kvstore.engine.cache import PagedKV
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.hooks import NoHooks
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse

RUNS = 15
GOAL = 1.03
SETTLE_SECONDS = 0.1  # the node lists and frees blocks after it has answered: not in our next run


@dataclass(frozen=True, slots=True)
class Sizes:
    """24 MiB of KV for about 90 billion multiplications and additions."""

    shape: Shape = field(default_factory=lambda: Shape(8, 512, 8, 4, 64, 1408))
    prompt_tokens: int = 1500
    chunk_tokens: int = 512
    dram: str = "32MiB"


def run(runs: int, say: Say, sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as scratch:
        folder = sizes.shape.make(Path(scratch))
        pages = -(-(sizes.prompt_tokens + 1) // 64) + 1
        settings = EngineSettings(pages=pages, max_batch_tokens=sizes.chunk_tokens)
        core = EngineCore.load(folder, settings)
        rows: list[Row] = []
        with (
            running_node(sizes.dram) as directory,
            Client.at(directory, spec_of(folder), label="bench publish") as client,
        ):
            for threads in sorted({1, len(os.sched_getaffinity(0))}):
                say(f"{threads} threads")
                with torch_threads(threads):
                    rows.append(_row(core, client, sizes, threads, runs, say))
    return Report(
        name="publish",
        unit="ms",
        against="the same prefill without a pool",
        ratio_is="time with publishing / time without",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=tuple(rows),
    )


def _row(core: EngineCore, client: Client, sizes: Sizes, threads: int, runs: int, say: Say) -> Row:
    prompts = Prompts(sizes.prompt_tokens, seed=threads)
    prompt: tuple[int, ...] = ()
    hooks: list[dict[str, float]] = []

    def renew(_: int) -> None:
        nonlocal prompt
        prompt = prompts.next()

    def publishing() -> float:
        pool, use = _Timed(client, core.cache), PoolUse()
        core.hooks = pool
        pool.expect("bench", use)
        started = time.perf_counter()
        prefill(core, prompt)
        took = time.perf_counter() - started
        chain = client.chain(prompt)
        check_published(pool, use.published_blocks, len(chain))
        client.remove(chain)
        time.sleep(SETTLE_SECONDS)
        hooks.append(pool.seconds)
        return took

    def alone() -> float:
        core.hooks = NoHooks()
        started = time.perf_counter()
        prefill(core, prompt)
        return time.perf_counter() - started

    rounds = measure({"with": publishing, "without": alone}, runs, say, before=renew)
    counted = hooks[-runs:]
    inside = {name: 1e3 * float(np.median([one[name] for one in counted])) for name in counted[0]}
    alone_ms = 1e3 * rounds.median("without")
    return Row(
        name=f"prefill and publish, threads: {threads}",
        sizes={
            "prompt_tokens": sizes.prompt_tokens,
            "chunk_tokens": sizes.chunk_tokens,
            "layers": sizes.shape.layers,
            "hidden": sizes.shape.hidden,
            "kv_heads": sizes.shape.kv_heads,
            "head_dim": sizes.shape.head_dim,
            "kv_bytes": sizes.prompt_tokens * sizes.shape.token_bytes,
            "torch_threads": threads,
        },
        runs=rounds.count,
        value=1e3 * rounds.median("with"),
        limit=alone_ms,
        ratio=rounds.ratio("with", "without"),
        spread=rounds.spread("with", "without"),
        counted=threads == 1,
        also={
            "hooks_ms": inside,
            "hooks_and_prefill_to_prefill": 1 + sum(inside.values()) / alone_ms,
        },
    )


class _Timed(Pool):
    """The engine's pool, with a stopwatch around every hook that the engine waits for."""

    def __init__(self, client: Client, cache: PagedKV) -> None:
        super().__init__(client, cache)
        names = ("admitted", "chunk_started", "layer_done", "chunk_done", "finished")
        self.seconds = dict.fromkeys(names, 0.0)
        for name in names:
            setattr(self, name, self._watched(name, getattr(self, name)))

    def _watched(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return hook(*args)
            finally:
                self.seconds[name] += time.perf_counter() - started

        return watched
