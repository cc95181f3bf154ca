"""How close the SSD tier's disk comes to fio: one file written in order, then read at random.

Ours is `LocalDisk` with DEPTH threads, each with one block in flight from its part of an arena, as
a node's blocks lie in one; fio has as many in flight. Both use O_DIRECT, the same file, so the same
places of the disk, the same block size, every block once, and, when writing, one sync at the end
that counts. They take turns. fio runs with whichever of its engines was fastest in a trial before;
psync is DEPTH threads of its own, each with a part of the file. Its seconds are those that it
counts itself, without its start. The file is made below TMPDIR, or /var/tmp.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.guest import NotInstalled
from bench.report import Goal, Report, Row
from bench.rounds import Rounds, measure
from kvstore.disk.local import LocalDisk, data_path
from kvstore.errors import ConfigError
from kvstore.limits import GiB, MiB
from kvstore.memory.arena import Arena

RUNS = 10
GOAL = 0.85
DEPTH = 16
TRIALS = 2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The file has a multiple of DEPTH blocks."""

    file_bytes: int = 2 * GiB
    block_bytes: int = 1 * MiB

    @property
    def engines(self) -> dict[str, dict[str, int]]:
        """fio's, and what each is told so that DEPTH blocks are in flight."""
        part = self.file_bytes // DEPTH
        whole = {"iodepth": DEPTH, "size": self.file_bytes}
        split = {"numjobs": DEPTH, "thread": 1, "size": part, "offset_increment": part}
        return {"io_uring": whole, "libaio": whole, "psync": split}


def run(runs: int, say: Say, sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    if shutil.which("fio") is None:
        raise NotInstalled("fio is not installed: on Debian and Ubuntu, apt-get install fio")
    below = os.environ.get("TMPDIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-", dir=below) as directory:
        try:
            one = sizes.file_bytes  # file, of one slab
            disk = LocalDisk.open(Path(directory), one, one, one)
        except ConfigError as error:
            raise NotInstalled(f"no disk to measure, name one by TMPDIR: {error}") from error
        ours, fio = _Ours(disk, sizes), _Fio(data_path(Path(directory), 0), sizes)
        try:
            ours.write()  # the first write to new room takes longer, whoever does it
            rows = [
                _row("sequential write", ours.write, fio, "write", sizes, runs, say),
                _row("random read", ours.read, fio, "randread", sizes, runs, say),
            ]
        finally:
            ours.close()
            disk.close()
    return Report(
        name="ssd",
        unit="GB/s",
        against=f"fio, O_DIRECT, {DEPTH} blocks in flight",
        ratio_is="our throughput / fio's",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


class _Ours:
    """The disk's only file, and threads that take its blocks as they come free."""

    def __init__(self, disk: LocalDisk, sizes: Sizes) -> None:
        self._disk, self._size = disk, sizes.block_bytes
        self._blocks = range(0, sizes.file_bytes, sizes.block_bytes)
        self._threads = ThreadPoolExecutor(DEPTH)
        self._dice = random.Random(1)
        self._arena = Arena.create(DEPTH * self._size)
        places = range(0, self._arena.size, self._size)
        self._memory = [self._arena.view[at : at + self._size] for at in places]
        for one in self._memory:
            one[:] = self._dice.randbytes(self._size)

    def write(self) -> float:
        started = time.perf_counter()
        self._each(self._blocks, lambda offset, one: self._disk.write(0, offset, [one]))
        self._disk.sync(0)
        return time.perf_counter() - started

    def read(self) -> float:
        order = self._dice.sample(self._blocks, len(self._blocks))
        started = time.perf_counter()
        self._each(order, lambda offset, one: self._disk.read(0, offset, one))
        return time.perf_counter() - started

    def close(self) -> None:
        self._threads.shutdown()
        self._memory.clear()
        self._arena.close()

    def _each(self, offsets: Sequence[int], call: Callable[[int, memoryview], None]) -> None:
        left = iter(offsets)  # shared: a thread takes the next when it is done with one

        def work(memory: memoryview) -> None:
            for offset in left:
                call(offset, memory)

        list(self._threads.map(work, self._memory))


class _Fio:
    def __init__(self, file: Path, sizes: Sizes) -> None:
        self._file, self._sizes = file, sizes

    def fastest(self, pattern: str) -> str:
        """The engine to use: the one that took the fewest seconds."""
        tried: dict[str, float] = {}
        said = ""
        for engine in self._sizes.engines:
            try:
                tried[engine] = min(self.seconds(pattern, engine) for _ in range(TRIALS))
            except RuntimeError as error:  # a kernel or container without io_uring
                said = str(error)
        if not tried:
            raise NotInstalled(f"fio has no engine that works here: {said}")
        return min(tried, key=tried.__getitem__)

    def seconds(self, pattern: str, engine: str) -> float:
        """As fio counts them: without its start, and with the sync at the end."""
        given = {
            "name": pattern,
            "filename": self._file,
            "rw": pattern,
            "bs": self._sizes.block_bytes,
            "ioengine": engine,
            "direct": 1,
            "end_fsync": int(pattern == "write"),
            "randrepeat": 0,
            "scramble_buffers": 0,  # ours are not made anew for each block either
            "group_reporting": 1,
            "output-format": "json",
            **self._sizes.engines[engine],
        }
        command = ["fio", *(f"--{key}={value}" for key, value in given.items())]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"fio ended with {ran.returncode}: {ran.stderr.strip()}")
        found = json.loads(ran.stdout)["jobs"][0]["write" if pattern == "write" else "read"]
        if found["io_bytes"] != self._sizes.file_bytes:
            raise RuntimeError(f"fio moved {found['io_bytes']} of {self._sizes.file_bytes} bytes")
        return max(1, int(found["runtime"])) / 1e3


def _row(
    name: str,
    ours: Callable[[], float],
    fio: _Fio,
    pattern: str,
    sizes: Sizes,
    runs: int,
    say: Say,
) -> Row:
    engine = fio.fastest(pattern)
    say(f"{name}, fio with {engine}")
    ways = {"ours": ours, "fio": lambda: fio.seconds(pattern, engine)}
    rounds: Rounds = measure(ways, runs, say)
    return Row(
        name=name,
        sizes={
            "file_bytes": sizes.file_bytes,
            "block_bytes": sizes.block_bytes,
            "depth": DEPTH,
            "fio_engine": engine,
        },
        runs=rounds.count,
        value=sizes.file_bytes / rounds.median("ours") / 1e9,
        limit=sizes.file_bytes / rounds.median("fio") / 1e9,
        ratio=rounds.ratio("fio", "ours"),
        spread=rounds.spread("fio", "ours"),
    )
