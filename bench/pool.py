"""The pool a bench measures: a real node process, and blocks of random bytes stored in it.

Nothing is simulated. The node is the one `moonpool node` runs, reached over gRPC and shared memory
as an engine reaches it. The bytes are random, so that no layer can make them small, and every page
a bench will touch is touched beforehand, so that none is faulted in on the clock.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.guest import NotInstalled
from kvstore.cli.stack import STOP_SECONDS, Child, Plan, Stack
from kvstore.client import PAGED, Chain, Client, KVGroup, KVSpec, Memory
from kvstore.errors import ConfigError

Layers = list[npt.NDArray[np.uint8]]  # one a layer: (pages, KV heads, tokens, K and V, run bytes)
LOG_CHARACTERS = 4000  # of the node's log, shown when a bench fails
ALIGNMENT = 64  # of memory that torch allocates, so of an engine's KV
RUN_BYTES = 256  # K, or V, of one token and head: 128 elements of bfloat16


@contextmanager
def running_node(dram: str, slab: str = "32MiB", transport: str = "tcp") -> Iterator[Path]:
    """A node process; its directory. It is stopped and its directory removed on any way out."""
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as directory:
        plan = Plan(
            Path(directory) / "pool", dram, slab, None, node_options=("--transport", transport)
        )
        with Stack(plan, restart=False) as stack:
            try:
                stack.start()
                yield plan.directory
            except NotInstalled:
                raise
            except Exception:
                log = stack.children["node"].log  # it goes with its directory
                print(log.read_text(errors="replace")[-LOG_CHARACTERS:], file=sys.stderr)
                raise


@contextmanager
def node_with_ssd(
    directory: Path, dram: str, slab_bytes: int, ssd_bytes: int, hbm: str = "0"
) -> Iterator[None]:
    """A node process in that directory, its SSD tier below it. It is stopped on any way out, and
    what it holds on SSD is there for the next one. Raises `NotInstalled` if that is no disk."""
    ssd = f"{directory / 'ssd'}:{ssd_bytes}"
    memory = ["--dram", dram, "--slab", str(slab_bytes), "--ssd", ssd, "--hbm", hbm]
    child = Child("node", ["-v", "node", "--dir", os.fspath(directory), *memory], directory)
    try:
        child.start()
        try:
            child.wait_ready()
        except ConfigError as error:
            raise NotInstalled(f"no disk to measure, name one by TMPDIR: {error}") from error
        yield
    finally:
        child.stop()
        child.reap(time.monotonic() + STOP_SECONDS)


def bfloat16_like(name: str, layers: int, kv_heads: int, block_tokens: int) -> KVSpec:
    """A namespace of head dim 128 in bfloat16, told as bytes: NumPy has no bfloat16 of its own."""
    group = KVGroup(tuple(range(layers)), kv_heads, RUN_BYTES, block_tokens)
    return KVSpec(model=f"bench/{name}", revision="1", dtype="uint8", groups=(group,))


def touched(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Memory of the caller's, aligned as an engine's is, and every page of it in place."""
    size = int(np.prod(shape))
    room = np.full(size + ALIGNMENT, 0xFF, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size].reshape(shape)


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that lie sealed in the node, their bytes here, and room to fetch them into."""

    chain: Chain
    source: Layers
    target: Layers
    memory: Memory  # describes `target`

    @classmethod
    def put(cls, client: Client, blocks: int, seed: int = 0) -> Stored:
        layout = client.space.layout
        shape = (blocks, layout.kv_heads, layout.block_tokens, layout.parts, layout.run_bytes)
        dice, table = np.random.default_rng(seed), np.arange(blocks)
        source, target = ([touched(shape) for _ in range(layout.layers)] for _ in range(2))
        for layer in source:
            layer.reshape(-1)[:] = np.frombuffer(dice.bytes(layer.nbytes), np.uint8)
        tokens = dice.integers(0, 1 << 31, blocks * layout.block_tokens)
        stored = cls(client.chain(tokens), source, target, client.memory(target, PAGED, table))
        made = client.put(stored.chain, client.memory(source, PAGED, table))
        if made != blocks:
            raise RuntimeError(f"{made} of {blocks} blocks could be stored: give the node more")
        return stored

    def fetch(self, client: Client) -> None:
        """The call that is timed: open, copy and verify all blocks, close."""
        found = client.get(self.chain, self.memory)
        if found.blocks != len(self.chain):
            raise RuntimeError(f"{found.blocks} of {len(self.chain)} blocks came: {found.miss}")

    def check(self) -> None:
        """What was fetched is what was stored, byte for byte."""
        for layer, (got, want) in enumerate(zip(self.target, self.source, strict=True)):
            if not np.array_equal(got, want):
                raise RuntimeError(f"layer {layer} was fetched wrong")
