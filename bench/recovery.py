"""How long a node takes from its start to serving, with a full SSD tier from an earlier run.

A node process makes its directory and is stopped; then blocks of the smallest slots there are, so
as many as a disk can have, are laid there (bench/filling.py). Each run starts `moonpool node` and
counts from exec until a caller that is new to it has a whole chain matched, opened, read from SSD
and verified. The system's page cache is dropped before each run where that is permitted; the row
says whether it was. At the end the node is to report every block, and a sample of chains is to be
there whole and to have its bytes.

The directory is made below TMPDIR, or /var/tmp.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.filling import CHAIN_BLOCKS, LAYOUT, SLAB_BYTES, SPEC, Filling, fill, stats
from bench.guest import NotInstalled
from bench.pool import node_with_ssd
from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.client import Client
from kvstore.config import SsdConfig
from kvstore.disk.division import file_bytes_of
from kvstore.disk.local import LocalDisk
from kvstore.limits import GiB, MiB

RUNS = 3
TAKES = ("blocks",)  # options of the command
LIMIT_S = 5.0
BLOCKS = (500_000,)
SAMPLE_CHAINS, READ_CHAINS = 200, 20  # matched, and of those read
DRAM = "512MiB"
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
RECOVERED = re.compile(r"(\d+) blocks on SSD, after ([\d.]+) s")

Say = Callable[[str], None]


def run(runs: int, say: Say, blocks: Sequence[int] | None = None) -> Report:
    return Report(
        name="recovery",
        unit="s",
        against=f"{LIMIT_S:.0f} s",
        ratio_is=f"seconds from the node's start to a chain read and verified / {LIMIT_S:.0f}",
        goal=1.0,
        sense=Goal.AT_MOST,
        rows=tuple(row for count in blocks or BLOCKS for row in _rows(count, runs, say)),
    )


def _rows(blocks: int, runs: int, say: Say) -> list[Row]:
    filling = Filling.of(blocks)
    below = os.environ.get("TMPDIR", "/var/tmp")
    _check_room(below, blocks)
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-", dir=below) as name:
        directory = Path(name)
        say(f"storing {blocks} blocks")
        began = time.monotonic()
        _fill(directory, filling)
        also: dict[str, object] = {"fill_s": time.monotonic() - began}
        dice, ready, serving = random.Random(1), [], []
        for number in range(runs):
            also["page_cache"] = "dropped" if _dropped() else "kept: dropping it is not permitted"
            log = (directory / "node.log").stat().st_size
            started = time.perf_counter()
            with node_with_ssd(directory, DRAM, SLAB_BYTES, _ssd_bytes(blocks)):
                ready.append(time.perf_counter() - started)
                with Client.at(directory, SPEC, label="bench recovery") as client:
                    filling.check(client, dice.randrange(filling.chains))
                    serving.append(time.perf_counter() - started)
                    also["resident_bytes"] = stats(client).resident_bytes
                    if number == runs - 1:
                        also |= _checked(client, filling, dice)
                also["recovered_s"] = _recovered_s(directory / "node.log", log, blocks)
            say(f"run {number + 1} of {runs}: {serving[-1]:.2f} s, ready after {ready[-1]:.2f} s")
    sizes = {"blocks": blocks, "slot_bytes": LAYOUT.slot_bytes, "chain_blocks": CHAIN_BLOCKS}
    whole, spread = float(np.median(serving)), Spread.of([one / LIMIT_S for one in serving])
    told = f"restart to serving, {blocks} blocks"
    return [
        Row(told, sizes, runs, whole, LIMIT_S, spread.median, spread, also=also),
        Row("of that until it says ready", sizes, runs, float(np.median(ready)), counted=False),
    ]


def _ssd_bytes(blocks: int) -> int:
    """Whole files: of 1 GiB, or one smaller one."""
    slabs = -(-blocks // (SLAB_BYTES // LAYOUT.slot_bytes))
    size = slabs * SLAB_BYTES
    return size if size <= GiB else -(-size // GiB) * GiB


def _check_room(below: str, blocks: int) -> None:
    size = _ssd_bytes(blocks)
    size += size // 16 + 64 * MiB  # the index, and what else a node writes
    free = shutil.disk_usage(below).free
    if free < size:
        raise NotInstalled(
            f"{blocks} blocks need {size / GiB:.1f} GiB, and below {below} are {free / GiB:.1f} "
            "free: name a disk with more by TMPDIR, or give fewer --blocks"
        )


def _fill(directory: Path, filling: Filling) -> None:
    size = _ssd_bytes(filling.blocks)
    with (
        node_with_ssd(directory, DRAM, SLAB_BYTES, size),
        Client.at(directory, SPEC) as client,
    ):
        pass  # the node has a tenant, a namespace and its files now, and the client its names
    ssd = SsdConfig(directory / "ssd", size)
    disk = LocalDisk.open(ssd.path, size, file_bytes_of(ssd, SLAB_BYTES), SLAB_BYTES)
    try:
        fill(directory, filling, client, disk)
    finally:
        disk.close()


def _checked(client: Client, filling: Filling, dice: random.Random) -> dict[str, object]:
    """All blocks are there, and what a sample of chains holds is what was stored."""
    held = stats(client).blocks
    if held != filling.blocks:
        raise RuntimeError(f"the node reports {held} blocks of {filling.blocks}")
    sample = dice.sample(range(filling.chains), min(SAMPLE_CHAINS, filling.chains))
    for place, number in enumerate(sample):
        if place < READ_CHAINS:
            filling.check(client, number)
        elif client.match(chain := filling.chain(client, number)).blocks != len(chain):
            raise RuntimeError(f"chain {number} is not there whole")
    return {"matched_chains": len(sample), "read_chains": min(READ_CHAINS, len(sample))}


def _recovered_s(log: Path, begin: int, blocks: int) -> float:
    """Seconds inside recovery, as the node's log tells of its last start; to a tenth."""
    found = RECOVERED.search(log.read_text(errors="replace")[begin:])
    if found is None or int(found[1]) != blocks:
        raise RuntimeError(f"the node's log does not tell of {blocks} blocks on SSD")
    return float(found[2])


def _dropped() -> bool:
    """Whether the page cache could be emptied: root may, outside a container."""
    os.sync()
    try:
        DROP_CACHES.write_text("1\n")
    except OSError:
        return False
    return True
