"""How much of a same-host fetch is verification, at the geometry of Llama 8B.

32 layers, 8 KV heads of dim 128 in bfloat16, blocks of 64 tokens, so strips of 32 KiB. A fetch is
timed against its unverified twin (see bench/unverified.py): the same calls and copies, no hash.
What the fetch takes longer, as a share of the fetch, is what verification costs. There are two
twins, one for each way to copy; the faster one makes the larger share, and both count. All work on
one thread.

A difference of two times is noisy, so the hash is timed alone as well: over the same bytes, in
place. That is an upper bound, since alone it has to wait for memory that a fetch reads anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.first_token import first_token
from bench.pool import Stored, bfloat16_like, running_node
from bench.report import Goal, Report, Row
from bench.rounds import Rounds, Spread, measure, timed
from bench.unverified import MEMCPY, STREAM, unverified
from kvstore.client import Client, KVSpec
from kvstore.client.opened import Opened

RUNS = 30
GOAL = 0.35


@dataclass(frozen=True, slots=True)
class Sizes:
    """Llama 3 8B; 32 blocks are 2,048 tokens and 256 MiB."""

    layers: int = 32
    kv_heads: int = 8
    block_tokens: int = 64
    blocks: int = 32
    dram: str = "1GiB"
    first_token: bool = True  # also the row from a running engine

    @property
    def spec(self) -> KVSpec:
        return bfloat16_like("llama-8b", self.layers, self.kv_heads, self.block_tokens)


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    with running_node(sizes.dram, slab="64MiB") as directory:

        def client(label: str) -> Client:
            return Client.at(directory, sizes.spec, label=label, copy_threads=1)

        with client("fetch") as fetch, client("stream") as stream, client("memcpy") as plain:
            stored = Stored.put(fetch, sizes.blocks)
            twins = {"stream": unverified(stream, STREAM), "memcpy": unverified(plain, MEMCPY)}
            for twin in twins.values():  # they are no measure unless they bring the bytes
                for target in stored.target:
                    target.fill(0xFF)
                stored.fetch(twin)
                stored.check()
            rounds = measure(
                {
                    "fetch": timed(lambda: stored.fetch(fetch)),
                    **{name: timed(partial(stored.fetch, twin)) for name, twin in twins.items()},
                    "hash": timed(_hash(fetch, stored)),
                },
                runs,
                say,
            )
            stored.check()
        rows = _rows(rounds, sizes, fetch.space.layout.payload_bytes)
    if sizes.first_token:
        say("first token of an engine")
        rows.append(first_token(runs, say))
    return Report(
        name="verify",
        unit="ms",
        against="the same fetch without hashing",
        ratio_is="(fetch - unverified fetch) / fetch",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=tuple(rows),
    )


def _hash(client: Client, stored: Stored) -> Callable[[], None]:
    """Hash every strip where it lies, as a pinned view does: no copy, and no call to the node."""
    layout, transport = client.space.layout, client.connection.link().transport
    opened = Opened(client.connection, client.space, stored.chain, (), 600_000)

    def check() -> None:
        if not transport.verify(layout, opened.slots, layout.whole).all():
            raise RuntimeError("a block that was stored well does not verify")

    return check


def _rows(rounds: Rounds, sizes: Sizes, block_bytes: int) -> list[Row]:
    facts = {
        "layers": sizes.layers,
        "kv_heads": sizes.kv_heads,
        "block_tokens": sizes.block_tokens,
        "strip_bytes": block_bytes // (sizes.layers * sizes.kv_heads),
        "blocks": sizes.blocks,
        "bytes": sizes.blocks * block_bytes,
        "threads": 1,
    }
    ms = {way: 1e3 * rounds.median(way) for way in rounds.seconds}
    also = {"fetch_gb_per_second": sizes.blocks * block_bytes / ms["fetch"] / 1e6}

    def share(name: str, twin: str) -> Row:
        each = 1 - np.divide(rounds.seconds[twin], rounds.seconds["fetch"])
        extra = {**also, "unverified_ms": ms[twin]}
        value, ratio = ms["fetch"] - ms[twin], 1 - rounds.ratio(twin, "fetch")
        spread = Spread.of(each.tolist())
        return Row(name, facts, rounds.count, value, ms["fetch"], ratio, spread, True, also=extra)

    spread, alone = rounds.spread("hash", "fetch"), rounds.ratio("hash", "fetch")
    tokens = sizes.blocks * sizes.block_tokens
    dearest = ms["fetch"] - min(ms["stream"], ms["memcpy"])
    return [
        share("against copies past the cache", "stream"),
        share("against memcpy", "memcpy"),
        Row("hash alone, an upper bound", facts, rounds.count, ms["hash"], ms["fetch"], alone,
            spread, False, also={"hash_gb_per_second": facts["bytes"] / ms["hash"] / 1e6}),
        Row("per 1,000 tokens", facts, rounds.count, dearest * 1000 / tokens, counted=False,
            also={"hash_alone_ms": ms["hash"] * 1000 / tokens}),
    ]  # fmt: skip
