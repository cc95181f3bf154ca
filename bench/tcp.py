"""How close a fetch from another host comes to plain sockets: 64 blocks of 1 MiB over loopback TCP.

Two processes. The whole client call is timed: Open at the node, every strip moved and verified, the
checks afterwards, Close. It is held against `sendall` and `recv_into` of as many bytes between two
processes on as many connections, which neither ask anyone nor verify. Each round times both ways,
so that what disturbs one disturbs the other. Storing the blocks is printed and not counted: it
reserves and seals them too, and each round removes what the last one stored. So is what verifying
alone costs: plain sockets whose every MiB is hashed when it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.plain_sockets import PlainSockets, plain_sockets
from bench.pool import RUN_BYTES, Stored, bfloat16_like, running_node, touched
from bench.report import Goal, Report, Row
from bench.rounds import Rounds, Way, measure, timed
from kvstore.client import PAGED, Client, KVSpec
from kvstore.limits import KiB, MiB
from kvstore.transfer.lanes import STREAMS

RUNS = 60
GOAL = 0.85
KV_HEADS, PARTS = 2, 2


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
        return bfloat16_like(f"tcp-{strip_bytes}", layers, KV_HEADS, tokens)


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    rows: list[Row] = []
    target = touched((sizes.blocks * sizes.block_bytes,))
    with (
        running_node(sizes.dram) as directory,
        plain_sockets(STREAMS, target) as plain,
    ):
        for index, strip_bytes in enumerate(sizes.strip_bytes):
            say(f"strips of {strip_bytes // KiB} KiB")
            spec = sizes.spec(strip_bytes)
            with Client.at(directory, spec, label="bench tcp", transport="tcp") as client:
                bench = _Bench(client, plain, sizes, strip_bytes, runs, say)
                rows.append(bench.load(counted=index == 0))
                rows.append(bench.store())
        rows.append(bench.least())
    return Report(
        name="tcp",
        unit="ms",
        against=f"{sizes.blocks * sizes.block_bytes // MiB} MiB over {STREAMS} plain sockets",
        ratio_is="plain time / fetch time",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


class _Bench:
    """The blocks of one strip size in the node, and a plain sender of as many bytes."""

    def __init__(
        self,
        client: Client,
        plain: PlainSockets,
        sizes: Sizes,
        strip_bytes: int,
        runs: int,
        say: Callable[[str], None],
    ) -> None:
        self._client, self._plain, self._runs, self._say = client, plain, runs, say
        self._stored = Stored.put(client, sizes.blocks, seed=strip_bytes)
        self._strip = strip_bytes // KiB
        self._facts = {
            "blocks": sizes.blocks,
            "block_bytes": sizes.block_bytes,
            "strip_bytes": strip_bytes,
            "streams": STREAMS,
        }

    def load(self, counted: bool) -> Row:
        rounds = self._against_plain(timed(lambda: self._stored.fetch(self._client)))
        self._stored.check()
        return self._row(f"get, strips of {self._strip} KiB", rounds, counted)

    def store(self) -> Row:
        memory = self._client.memory(self._stored.source, PAGED, np.arange(self._facts["blocks"]))
        chain = self._stored.chain

        def remove(_: int) -> None:
            self._client.remove(chain)

        def put() -> None:
            if self._client.put(chain, memory) != len(chain):
                raise RuntimeError("some of the blocks were there already")

        rounds = self._against_plain(timed(put), remove)
        self._stored.fetch(self._client)
        self._stored.check()
        return self._row(f"put, strips of {self._strip} KiB", rounds, counted=False)

    def least(self) -> Row:
        rounds = self._against_plain(timed(self._plain.fetch_hashed))
        return self._row("plain sockets that hash", rounds, counted=False)

    def _against_plain(self, way: Way, before: Callable[[int], None] | None = None) -> Rounds:
        ways = {"call": way, "plain": timed(self._plain.fetch)}
        return measure(ways, self._runs, self._say, before=before)

    def _row(self, name: str, rounds: Rounds, counted: bool) -> Row:
        size = self._facts["blocks"] * self._facts["block_bytes"]
        return Row(
            name=name,
            sizes=self._facts,
            runs=rounds.count,
            value=1e3 * rounds.median("call"),
            limit=1e3 * rounds.median("plain"),
            ratio=rounds.ratio("plain", "call"),
            spread=rounds.spread("plain", "call"),
            counted=counted,
            also={
                "gb_per_second": size / rounds.median("call") / 1e9,
                "plain_gb_per_second": size / rounds.median("plain") / 1e9,
            },
        )
