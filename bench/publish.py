"""What publishing costs a prefill: layer by layer into the pool, against the same prefill alone.

One engine computes each prompt twice in a row, once with the pool's hooks and once with none: same
weights, pages, chunks and tokens. With them it asks the pool for the prompt (nothing is there),
reserves its blocks, stores layers soon after they are computed, and seals each chunk, all inside
the time that is measured. Every block must have been sealed, and is removed off the clock; every
round has a new prompt. The node has just room enough for one, so the warm rounds touch all of it.

The row that counts computes with one thread; with one a core, a thread that waits for a busy
neighbour would be what is timed. The other row uses every core, so there the prefill is shorter and
the hooks, which are one thread's work, weigh more. Prefills differ from each other by more than the
hooks cost, so what the hooks took by themselves is told too. Where there is a CUDA device a row of
it counts too: a model of Llama 8B's shape in bfloat16, with random weights. `--only cuda` has that
row alone, `--only cpu` the others.
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
import torch

from bench.engine import Prompts, Say, Shape, check_published, prefill, torch_threads
from bench.guest import NotInstalled
from bench.pool import running_node
from bench.random_model import BLOCK_TOKENS, LLAMA_8B, namespace_of, random_model, token_bytes
from bench.report import Goal, Report, Row
from bench.rounds import measure
from kvstore.client import Client
from kvstore.engine.cache import PagedKV
from kvstore.engine.config import ModelConfig
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.device import CPU, Device
from kvstore.engine.hooks import NoHooks
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse

RUNS = 15
TAKES = ("only",)  # options of the command
GOAL = 1.03
SETTLE_SECONDS = 0.1  # the node lists and frees blocks after it has answered: not in our next run


@dataclass(frozen=True, slots=True)
class Sizes:
    """24 MiB of KV for about 90 billion multiplications and additions."""

    shape: Shape = field(default_factory=lambda: Shape(8, 512, 8, 4, 64, 1408))
    prompt_tokens: int = 1500
    chunk_tokens: int = 512
    dram: str = "32MiB"


@dataclass(frozen=True, slots=True)
class LargeSizes:
    """1 GiB of KV."""

    config: ModelConfig = LLAMA_8B
    prompt_tokens: int = 8192
    chunk_tokens: int = 2048
    dram: str = "2GiB"


def run(runs: int, say: Say, sizes: Sizes | None = None, only: str | None = None) -> Report:
    if only not in (None, "cpu", "cuda"):
        raise SystemExit(f"--only {only}: is one of cpu, cuda")
    if only == "cuda" and not torch.cuda.is_available():
        raise NotInstalled("a CUDA GPU is needed, and torch sees none here")
    rows = [] if only == "cuda" else on_cpu(runs, say, sizes or Sizes())
    if only != "cpu" and torch.cuda.is_available():
        say("on the GPU")
        rows.append(on_device(runs, say, LargeSizes(), Device.named("cuda")))
    return Report(
        name="publish",
        unit="ms",
        against="the same prefill without a pool",
        ratio_is="time with publishing / time without",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=tuple(rows),
    )


def on_device(runs: int, say: Say, sizes: LargeSizes, device: Device) -> Row:
    pages = -(-(sizes.prompt_tokens + 1) // BLOCK_TOKENS) + 1
    settings = EngineSettings(pages=pages, max_batch_tokens=sizes.chunk_tokens)
    core = EngineCore(random_model(sizes.config, device), settings)
    spec = namespace_of("publish", sizes.config)
    with (
        running_node(sizes.dram) as directory,
        Client.at(directory, spec, label="bench publish") as client,
        torch_threads(1),
    ):
        problem = _Problem(core, client, sizes.prompt_tokens, device)
        facts = _facts(sizes.config, sizes.prompt_tokens, sizes.chunk_tokens)
        facts["kv_bytes"] = sizes.prompt_tokens * token_bytes(sizes.config)
        return problem.row(f"prefill and publish on {device.place}", facts, runs, say)


def on_cpu(runs: int, say: Say, sizes: Sizes) -> list[Row]:
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
                problem = _Problem(core, client, sizes.prompt_tokens, CPU, seed=threads)
                facts = _facts(core.model.config, sizes.prompt_tokens, sizes.chunk_tokens)
                facts["kv_bytes"] = sizes.prompt_tokens * sizes.shape.token_bytes
                facts["torch_threads"] = threads
                name = f"prefill and publish, threads: {threads}"
                with torch_threads(threads):
                    rows.append(problem.row(name, facts, runs, say, counted=threads == 1))
    return rows


def _facts(config: ModelConfig, prompt_tokens: int, chunk_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "chunk_tokens": chunk_tokens,
        "layers": config.layers,
        "hidden": config.hidden_size,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
    }


class _Problem:
    """One engine, and prompts of one length."""

    def __init__(
        self, core: EngineCore, client: Client, prompt_tokens: int, device: Device, seed: int = 0
    ) -> None:
        self._core, self._client, self._device = core, client, device
        self._prompts = Prompts(prompt_tokens, seed)
        self._prompt: tuple[int, ...] = ()
        self._hooks: list[dict[str, float]] = []

    def row(
        self, name: str, facts: dict[str, Any], runs: int, say: Say, counted: bool = True
    ) -> Row:
        ways = {"with": self._publishing, "without": self._alone}
        rounds = measure(ways, runs, say, before=self._renew)
        counted_hooks = self._hooks[-runs:]
        inside = {
            each: 1e3 * float(np.median([one[each] for one in counted_hooks]))
            for each in counted_hooks[0]
        }
        alone_ms = 1e3 * rounds.median("without")
        return Row(
            name=name,
            sizes=facts,
            runs=rounds.count,
            value=1e3 * rounds.median("with"),
            limit=alone_ms,
            ratio=rounds.ratio("with", "without"),
            spread=rounds.spread("with", "without"),
            counted=counted,
            also={
                "hooks_ms": inside,
                "hooks_and_prefill_to_prefill": 1 + sum(inside.values()) / alone_ms,
            },
        )

    def _renew(self, _: int) -> None:
        self._prompt = self._prompts.next()

    def _publishing(self) -> float:
        pool, use = _Timed(self._client, self._core.cache, self._device), PoolUse()
        self._core.hooks = pool
        pool.expect("bench", use)
        started = time.perf_counter()
        prefill(self._core, self._prompt)
        took = time.perf_counter() - started
        chain = self._client.chain(self._prompt)
        check_published(pool, use.published_blocks, len(chain))
        pool.close()
        self._client.remove(chain)
        time.sleep(SETTLE_SECONDS)
        self._hooks.append(pool.seconds)
        return took

    def _alone(self) -> float:
        self._core.hooks = NoHooks()
        started = time.perf_counter()
        prefill(self._core, self._prompt)
        return time.perf_counter() - started


class _Timed(Pool):
    """The engine's pool, with a stopwatch around every hook that the engine waits for."""

    def __init__(self, client: Client, cache: PagedKV, device: Device) -> None:
        super().__init__(client, cache, device=device)
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
