"""What it costs a put that the pool is full, as it is once it has served for a while: each block
that comes displaces one that is there.

1,024 blocks of 64 KiB are put by one call into a node's memory, over and over: into a full pool,
and into the same where as many blocks were removed just before. Each put is of a prompt of its own,
whose hashes are made beforehand; all else of the call is timed. What is displaced are prompts that
were put before, none of which was read since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.pool import RUN_BYTES, bfloat16_like, running_node, touched
from bench.report import Goal, Report, Row
from bench.rounds import measure, timed
from kvstore.client import PAGED, Chain, Client, KVSpec
from kvstore.limits import KiB

RUNS = 30
GOAL = 1.5
LAYERS, KV_HEADS, PARTS = 4, 4, 2


@dataclass(frozen=True, slots=True)
class Sizes:
    blocks: int = 1_024  # of one put
    block_bytes: int = 64 * KiB
    dram: str = "256MiB"
    slab: str = "32MiB"

    def spec(self) -> KVSpec:
        tokens = self.block_bytes // (LAYERS * KV_HEADS * PARTS * RUN_BYTES)
        return bfloat16_like(f"full-{self.block_bytes}", LAYERS, KV_HEADS, tokens)


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    spec = sizes.spec()
    with (
        running_node(sizes.dram, sizes.slab) as directory,
        Client.at(directory, spec, label="bench full") as client,
    ):
        bench = _Bench(client, sizes)
        say("filling the pool")
        bench.fill()
        rounds = measure({"full": bench.into_a_full_one, "room": bench.with_room}, runs, say)
    facts = {"blocks": sizes.blocks, "block_bytes": sizes.block_bytes, "dram": sizes.dram}
    each = 1e6 / sizes.blocks
    row = Row(
        name=f"put of {sizes.blocks} x {sizes.block_bytes // KiB} KiB into a full pool",
        sizes=facts,
        runs=rounds.count,
        value=1e3 * rounds.median("full"),
        limit=1e3 * rounds.median("room"),
        ratio=rounds.ratio("full", "room"),
        spread=rounds.spread("full", "room"),
        also={
            "us_a_block": each * rounds.median("full"),
            "us_a_block_with_room": each * rounds.median("room"),
        },
    )
    return Report(
        name="full",
        unit="ms",
        against="the same put where there is room",
        ratio_is="time in a full pool / time where there is room",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=(row,),
    )


class _Bench:
    """Prompts that are put one after the other; the last of them is in the pool whole."""

    def __init__(self, client: Client, sizes: Sizes) -> None:
        self._client, self._blocks = client, sizes.blocks
        layout, table = client.space.layout, np.arange(sizes.blocks)
        shape = (sizes.blocks, layout.kv_heads, layout.block_tokens, layout.parts, layout.run_bytes)
        pages = [touched(shape) for _ in range(layout.layers)]
        self._memory = client.memory(pages, PAGED, table)
        self._dice, self._tokens = np.random.default_rng(0), sizes.blocks * layout.block_tokens
        self._last: Chain | None = None

    def fill(self) -> None:
        """Until what was put first has made room for others; to ask so is no use of it."""
        self._put()
        first = self._last
        assert first is not None, "it was put"
        while all(self._client.exists_each(first)):
            self._put()

    def into_a_full_one(self) -> float:
        return self._put()

    def with_room(self) -> float:
        assert self._last is not None, "it was filled"
        self._client.remove(self._last)
        return self._put()

    def _put(self) -> float:
        chain = self._last = self._client.chain(self._dice.integers(0, 1 << 31, self._tokens))

        def put() -> None:
            if self._client.put(chain, self._memory) != self._blocks:
                raise RuntimeError("some of the blocks could not be stored: give the node more")

        return timed(put)()
