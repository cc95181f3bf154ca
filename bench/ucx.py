"""How close blocks pulled over UCX come to NIXL alone: 64 blocks of 1 MiB, two processes, one host.

What is timed is a pull: calls to the node, whose every handle is checked there, the move into this
process's registered memory, and the proof of every strip and root. It is held against one NIXL
transfer of as many bytes in as many descriptors by another process, made once, posted, and timed
where it is posted, so that it neither asks anyone nor checks anything. UCX moves both through the
kernel from one process's memory to the other's (`UCX_TLS` without RDMA); RDMA is not
measured. A whole get (Open, move, check, copy into the engine's pages, Close) is printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.bare_nixl import BareNixl
from bench.pool import RUN_BYTES, Stored, bfloat16_like, running_node, touched
from bench.report import Goal, Report, Row
from bench.rounds import Rounds, Way, measure, timed
from kvstore.client import Client, KVSpec
from kvstore.client.opened import Opened
from kvstore.limits import KiB, MiB
from kvstore.transfer.landing import Landing
from kvstore.transfer.ucx import UcxTransport

RUNS = 60
GOAL = 0.90
KV_HEADS, PARTS = 2, 2
SHARED_MEMORY = "posix,sysv,cma,self,tcp"  # tcp is how UCX sees that a process has died


@dataclass(frozen=True, slots=True)
class Sizes:
    """The first strip size is the one that counts."""

    blocks: int = 64
    block_bytes: int = 1 * MiB
    strip_bytes: tuple[int, ...] = (128 * KiB, 32 * KiB)
    dram: str = "512MiB"

    def spec(self, strip_bytes: int) -> KVSpec:
        """Blocks of `block_bytes` cut into strips of `strip_bytes`: more tokens, longer strips."""
        layers = self.block_bytes // strip_bytes // KV_HEADS
        tokens = strip_bytes // (PARTS * RUN_BYTES)
        return bfloat16_like(f"ucx-{strip_bytes}", layers, KV_HEADS, tokens)


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    os.environ.setdefault("UCX_TLS", SHARED_MEMORY)
    rows: list[Row] = []
    target = touched((sizes.blocks * sizes.block_bytes,))
    with (
        running_node(sizes.dram, transport="tcp,ucx") as directory,
        BareNixl(target, sizes.blocks, sizes.block_bytes) as bare,
    ):
        for index, strip_bytes in enumerate(sizes.strip_bytes):
            say(f"strips of {strip_bytes // KiB} KiB")
            spec = sizes.spec(strip_bytes)
            with Client.at(directory, spec, label="bench ucx", transport="ucx") as client:
                bench = _Bench(client, bare, sizes, strip_bytes, runs, say)
                rows.append(bench.pull(counted=index == 0))
                rows.append(bench.get())
    return Report(
        name="ucx",
        unit="ms",
        against=f"a bare NIXL transfer of {sizes.blocks} x {sizes.block_bytes // KiB} KiB",
        ratio_is="bare time / pull time",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


class _Bench:
    """The blocks of one strip size in the node, and memory of this process to pull them into."""

    def __init__(
        self,
        client: Client,
        bare: BareNixl,
        sizes: Sizes,
        strip_bytes: int,
        runs: int,
        say: Callable[[str], None],
    ) -> None:
        self._client, self._bare, self._runs, self._say = client, bare, runs, say
        self._stored = Stored.put(client, sizes.blocks, seed=strip_bytes)
        self._memory = touched((sizes.blocks * sizes.block_bytes,))
        self._strip = strip_bytes // KiB
        self._facts = {
            "blocks": sizes.blocks,
            "block_bytes": sizes.block_bytes,
            "strip_bytes": strip_bytes,
            "ucx_tls": os.environ["UCX_TLS"],
        }

    def pull(self, counted: bool) -> Row:
        space, link = self._client.space, self._client.connection.link()
        layout, transport = space.layout, link.transport
        assert isinstance(transport, UcxTransport), "the client was made for ucx"
        opened = Opened(self._client.connection, space, self._stored.chain, (), 600_000, "")
        every = np.arange(opened.count)
        places = layout.payload_bytes * every
        landing = Landing(layout, self._memory, places, opened.slots.tokens)

        def pull() -> None:
            if not transport.pull(layout, opened.slots, layout.whole, landing, every).all():
                raise RuntimeError("some of the blocks were not proven")

        try:
            rounds = self._against_bare(timed(pull))
        finally:
            opened.close(np.zeros(opened.count, dtype=bool))
        self._check()
        return self._row(f"pull, strips of {self._strip} KiB", rounds, counted)

    def get(self) -> Row:
        rounds = self._against_bare(timed(lambda: self._stored.fetch(self._client)))
        self._stored.check()
        return self._row(f"get, strips of {self._strip} KiB", rounds, counted=False)

    def _check(self) -> None:
        """What was pulled is what was stored: the engine's (block, ...) a layer, here by block."""
        blocks = self._facts["blocks"]
        want = np.stack([layer.reshape(blocks, -1) for layer in self._stored.source], axis=1)
        if not np.array_equal(self._memory.reshape(want.shape), want):
            raise RuntimeError("what was pulled is not what was stored")

    def _against_bare(self, way: Way) -> Rounds:
        return measure({"call": way, "bare": self._bare.transfer}, self._runs, self._say)

    def _row(self, name: str, rounds: Rounds, counted: bool) -> Row:
        size = int(self._facts["blocks"]) * int(self._facts["block_bytes"])
        return Row(
            name=name,
            sizes=self._facts,
            runs=rounds.count,
            value=1e3 * rounds.median("call"),
            limit=1e3 * rounds.median("bare"),
            ratio=rounds.ratio("bare", "call"),
            spread=rounds.spread("bare", "call"),
            counted=counted,
            also={
                "gb_per_second": size / rounds.median("call") / 1e9,
                "bare_gb_per_second": size / rounds.median("bare") / 1e9,
            },
        )
