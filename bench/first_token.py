"""What verification is of a first token's time, where the prompt's KV comes from the pool.

A small engine is asked for the first token of a prompt whose blocks all lie in the node, once with
its real client and once with the unverified twin's (see bench/unverified.py). Everything else is
the same: matching, opening, loading, and computing the last token. So the difference is what
verification adds to what a user waits for.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bench.engine import Prompts, Say, Shape, check_published, prefill, torch_threads
from bench.pool import running_node
from bench.report import Row
from bench.rounds import Spread, measure, timed
from bench.unverified import STREAM, unverified
from kvstore.client import Client
from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse

SHAPE = Shape(layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=1408)
THREADS = 1  # one token is computed: a second thread would only wait for the first
TOKENS = 2048  # whole blocks: the twin copies no others


def first_token(runs: int, say: Say) -> Row:
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as scratch:
        folder = SHAPE.make(Path(scratch))
        core = EngineCore.load(folder, EngineSettings(pages=40))
        spec = spec_of(folder)
        with (
            torch_threads(THREADS),
            running_node("256MiB") as directory,
            Client.at(directory, spec) as client,
            Client.at(directory, spec) as other,
        ):
            prompt = Prompts(TOKENS).next()
            pool, twin = Pool(client, core.cache), Pool(unverified(other, STREAM), core.cache)
            core.hooks, use = pool, PoolUse()
            pool.expect("bench", use)
            prefill(core, prompt)
            check_published(pool, use.published_blocks, len(client.chain(prompt)))

            def ask(hooks: Pool) -> None:
                core.hooks = hooks
                done = prefill(core, prompt)[-1]
                if not isinstance(done, FinishEvent) or done.cached_tokens != TOKENS - 1:
                    raise RuntimeError("the prompt was computed, and should have been loaded")

            rounds = measure(
                {"verified": timed(lambda: ask(pool)), "unverified": timed(lambda: ask(twin))},
                runs,
                say,
            )
    each = 1 - np.divide(rounds.seconds["unverified"], rounds.seconds["verified"])
    whole, bare = 1e3 * rounds.median("verified"), 1e3 * rounds.median("unverified")
    return Row(
        name="of a first token, small engine",
        sizes={
            "prompt_tokens": TOKENS,
            "bytes": TOKENS * SHAPE.token_bytes,
            "torch_threads": THREADS,
        },
        runs=rounds.count,
        value=whole - bare,
        limit=whole,
        ratio=1 - rounds.ratio("unverified", "verified"),
        spread=Spread.of(each.tolist()),
        counted=False,
    )
