"""How close a same-host fetch comes to memcpy: 64 blocks of 1 MiB into the caller's own memory.

The whole client call is timed, on one thread: Open at the node, copying and hashing every strip,
the checks afterwards, Close. It is held against `np.copyto` of as many bytes in as many calls of
1 MiB, in the same process and rounds. So the memcpy neither asks anyone nor verifies nor shares
memory. All memory is touched first. Fetch and memcpy have sources and targets of their own, larger
than this cache together, and take turns: each finds what the other left, and nothing of its own.
The same with as many threads as the client takes by itself is printed, and not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.pool import RUN_BYTES, Stored, bfloat16_like, running_node, touched
from bench.report import Goal, Report, Row
from bench.rounds import Rounds, measure, timed
from kvstore.client import Client, KVSpec
from kvstore.limits import KiB, MiB
from kvstore.transfer.copiers import COPY_THREADS

RUNS = 60
GOAL = 0.80
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
        return bfloat16_like(f"local-{strip_bytes}", layers, KV_HEADS, tokens)


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    rows: list[Row] = []
    with running_node(sizes.dram) as directory:
        for index, strip_bytes in enumerate(sizes.strip_bytes):
            say(f"strips of {strip_bytes // KiB} KiB")
            with _client(directory, sizes.spec(strip_bytes), 1) as client:
                bench = _Bench(client, sizes, strip_bytes, 1, runs, say)
                rows.append(bench.get(counted=index == 0))
                if index == 0:
                    rows.append(bench.pinned())
        if COPY_THREADS > 1:
            strip_bytes = sizes.strip_bytes[0]
            with _client(directory, sizes.spec(strip_bytes), COPY_THREADS) as client:
                bench = _Bench(client, sizes, strip_bytes, COPY_THREADS, runs, say)
                rows.append(bench.get(counted=False))
    return Report(
        name="local",
        unit="ms",
        against=f"{sizes.blocks} memcpys of {sizes.block_bytes // KiB} KiB, one thread",
        ratio_is="memcpy time / get time",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


def _client(directory: Path, spec: KVSpec, threads: int) -> Client:
    return Client.at(directory, spec, label="bench local", copy_threads=threads)


class _Bench:
    """The blocks of one strip size in the node, and memory for as many bytes of memcpy."""

    def __init__(
        self,
        client: Client,
        sizes: Sizes,
        strip_bytes: int,
        threads: int,
        runs: int,
        say: Callable[[str], None],
    ) -> None:
        self._client, self._runs, self._say = client, runs, say
        self._stored = Stored.put(client, sizes.blocks, seed=strip_bytes + threads)
        shape = (sizes.blocks, sizes.block_bytes)
        self._source, self._target = touched(shape), touched(shape)
        self._facts = {
            "blocks": sizes.blocks,
            "block_bytes": sizes.block_bytes,
            "strip_bytes": strip_bytes,
            "strips_per_block": sizes.block_bytes // strip_bytes,
            "threads": threads,
        }

    def get(self, counted: bool) -> Row:
        rounds = self._against_memcpy(lambda: self._stored.fetch(self._client))
        self._stored.check()
        strip, threads = self._facts["strip_bytes"] // KiB, self._facts["threads"]
        shared = f", {threads} threads" if threads > 1 else ""
        return self._row(f"get, strips of {strip} KiB{shared}", rounds, counted)

    def pinned(self) -> Row:
        """Verified where they lie: no byte moves, so memcpy is no limit, only a yardstick."""
        rounds = self._against_memcpy(self._pin)
        with self._client.pin(self._stored.chain) as pinned:
            aliases = all(_lies_in_arena(view) for view in pinned.views())
        return self._row("pinned view", rounds, False, views_alias_the_arena=aliases)

    def _against_memcpy(self, call: Callable[[], None]) -> Rounds:
        ways = {"call": timed(call), "memcpy": timed(self._memcpy)}
        return measure(ways, self._runs, self._say)

    def _memcpy(self) -> None:
        for target, source in zip(self._target, self._source, strict=True):
            np.copyto(target, source)

    def _pin(self) -> None:
        with self._client.pin(self._stored.chain) as pinned:
            if pinned.confirm() != len(pinned.views()) or pinned.miss is not None:
                raise RuntimeError(f"{pinned.blocks} blocks could be pinned: {pinned.miss}")

    def _row(self, name: str, rounds: Rounds, counted: bool, **also: object) -> Row:
        size = self._source.nbytes
        return Row(
            name=name,
            sizes=self._facts,
            runs=rounds.count,
            value=1e3 * rounds.median("call"),
            limit=1e3 * rounds.median("memcpy"),
            ratio=rounds.ratio("memcpy", "call"),
            spread=rounds.spread("memcpy", "call"),
            counted=counted,
            also={
                "gb_per_second": size / rounds.median("call") / 1e9,
                "memcpy_gb_per_second": size / rounds.median("memcpy") / 1e9,
                **also,
            },
        )


def _lies_in_arena(view: npt.NDArray[np.uint8]) -> bool:
    """Whether its bytes are the node's own memory, in a shared and read-only mapping."""
    first, last = view.ctypes.data, view.ctypes.data + view.nbytes
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, mode, *_ = line.split()
        low, high = (int(end, 16) for end in where.split("-"))
        if low <= first and last <= high:
            return mode == "r--s" and "moonpool-arena" in line
    return False
