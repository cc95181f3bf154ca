"""How much of a hand-off's transfer is hidden behind the prefill that it follows.

A prefill engine here computes and publishes a prompt layer by layer; a decode engine in another
process (bench/follower.py) loads it meanwhile. Exposed is what is left when the prefill is done:
from the moment its last layer of its last chunk is stored until the follower has everything, all of
it verified. Total is what the follower needs for the same blocks once they are sealed, in one go
and with nobody else at work. So the share is 0 for a follower that only begins at the end, and
polling too seldom, or falling behind, costs as much of it as it costs a user. A hand-off that is
not followed at all, since its prefill was over before anybody looked, counts as 0 too, and how many
were is told beside the row.

What is left exposed hardly depends on the size: it is the last layer of the last chunk, and how
long the follower took to look. So the share grows with the KV that there is to move. The row that
counts has as much a token as Llama 8B, 128 KiB, behind a prefill far cheaper than that model's; the
other row has 48 KiB. Each engine computes with one thread, as two with cores of their own would.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine import Prompts, Say, Shape, check_published, prefill, torch_threads
from bench.pool import running_node
from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.client import Client
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Chunk
from kvstore.limits import KiB

RUNS = 9
GOAL = 0.90
WARM_PROMPTS = 2
LOADS = 3  # of each prompt's sealed blocks: their median is its total
THREADS = 1
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Sizes:
    """256 MiB of KV in 16 layers and 4 chunks: it lands in 64 pieces."""

    shape: Shape = field(default_factory=lambda: Shape(16, 256, 16, 16, 64, 704))
    prompt_tokens: int = 2048
    chunk_tokens: int = 512
    dram: str = "384MiB"  # for one prompt and little more, so that the warm ones touch all of it

    @property
    def chunks(self) -> int:
        return -(-self.prompt_tokens // self.chunk_tokens)


SMALLER = Sizes(Shape(12, 512, 8, 8, 64, 1408), dram="128MiB")


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One prompt's seconds."""

    prefill: float
    exposed: float
    total: float
    followed_tokens: int

    @property
    def overlap(self) -> float:
        if not self.followed_tokens:
            return 0.0
        return min(1.0, max(0.0, 1 - self.exposed / self.total))


def run(runs: int, say: Say, sizes: tuple[Sizes, ...] = (Sizes(), SMALLER)) -> Report:
    """The first of `sizes` is the one that counts."""
    with torch_threads(THREADS):
        rows = [_row(_prompts(one, runs, say), one, one is sizes[0]) for one in sizes]
    return Report(
        name="overlap",
        unit="ms",
        against="loading the same sealed blocks in one go",
        ratio_is="1 - exposed / total, median of the prompts",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


def _prompts(sizes: Sizes, runs: int, say: Say) -> list[_Prompt]:
    pages = -(-(sizes.prompt_tokens + 1) // 64)
    found: list[_Prompt] = []
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as scratch:
        folder = sizes.shape.make(Path(scratch))
        settings = EngineSettings(pages=pages, max_batch_tokens=sizes.chunk_tokens)
        core = EngineCore.load(folder, settings)
        with (
            running_node(sizes.dram) as directory,
            Client.at(directory, spec_of(folder), label="bench overlap") as client,
            _following(folder, directory, pages) as follower,
        ):
            prompts = Prompts(sizes.prompt_tokens)
            for number in range(-WARM_PROMPTS, runs):
                one = _hand_off(core, client, follower, prompts.next())
                if number >= 0:
                    found.append(one)
                    say(f"prompt {number + 1} of {runs}: {one.overlap:.3f} hidden")
    return found


def _row(found: list[_Prompt], sizes: Sizes, counted: bool) -> Row:
    overlaps = [one.overlap for one in found]
    return Row(
        name=f"exposed, of {sizes.shape.token_bytes // KiB} KiB a token",
        sizes={
            "layers": sizes.shape.layers,
            "chunks": sizes.chunks,
            "layers_x_chunks": sizes.shape.layers * sizes.chunks,
            "kv_heads": sizes.shape.kv_heads,
            "head_dim": sizes.shape.head_dim,
            "prompt_tokens": sizes.prompt_tokens,
            "kv_bytes": sizes.prompt_tokens * sizes.shape.token_bytes,
            "torch_threads": THREADS,
        },
        runs=len(found),
        value=1e3 * float(np.median([one.exposed for one in found])),
        limit=1e3 * float(np.median([one.total for one in found])),
        ratio=float(np.median(overlaps)),
        spread=Spread.of(overlaps),
        counted=counted,
        also={
            "prefill_ms": 1e3 * float(np.median([one.prefill for one in found])),
            "not_followed": sum(not one.followed_tokens for one in found),
        },
    )


def _hand_off(
    core: EngineCore, client: Client, follower: _Follower, prompt: tuple[int, ...]
) -> _Prompt:
    pool = _Stamped(client, core.cache)
    use = PoolUse(reserved=lambda handles: follower.follow(prompt, handles))
    core.hooks = pool
    pool.expect("bench", use)
    started = time.monotonic()
    prefill(core, prompt)
    chain = client.chain(prompt)
    check_published(pool, use.published_blocks, len(chain))
    landed = follower.answer()
    if landed["tokens"] != len(prompt):
        raise RuntimeError(f"the follower had {landed['tokens']} tokens: {landed['miss']}")
    loads = follower.load(prompt)
    client.remove(chain)
    return _Prompt(
        prefill=pool.stored_at - started,
        exposed=landed["landed"] - pool.stored_at,
        total=float(np.median(loads)),
        followed_tokens=landed["followed_tokens"],
    )


class _Stamped(Pool):
    """The engine's pool; remembers when the last layer of a prompt's last chunk was stored."""

    stored_at = 0.0

    def layer_done(self, layer: int, chunks: Any) -> None:
        super().layer_done(layer, chunks)
        ends: list[Chunk] = [chunk for chunk in chunks if chunk.last]
        if ends and layer == len(self._cache.layers) - 1:
            self.stored_at = time.monotonic()


class _Follower:
    """The other process, seen from here."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def follow(self, prompt: tuple[int, ...], handles: tuple[bytes, ...]) -> None:
        """Tell it of a hand-off; it answers when it has all of it."""
        self._tell({"follow": prompt, "hand_offs": [handle.hex() for handle in handles]})

    def load(self, prompt: tuple[int, ...]) -> list[float]:
        self._tell({"load": prompt, "times": LOADS})
        seconds: list[float] = self.answer()["seconds"]
        return seconds

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the follower ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tell(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)


@contextmanager
def _following(folder: Path, directory: Path, pages: int) -> Iterator[_Follower]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.follower", str(folder), str(directory), str(pages)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the bench alone, which then ends it
    )
    try:
        follower = _Follower(process)
        follower.answer()  # it is ready
        yield follower
    finally:
        process.kill()  # it keeps nothing; the node frees what a session held
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
