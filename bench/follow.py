"""What it costs to follow a node that lists millions of blocks, and to be a conductor that does.

A process of its own serves the real Directory service over a real Listing that is filled with
fingerprints made up from a seed: no arena is needed, and no node ever has a way in for such. This
process follows it first, by itself, for what the node can send; then a real conductor does, found
through a metadata file as in any pool, and counts from exec until it has every block. Changes are
made as quickly as the node's process can, tiers of blocks that it lists.

    python -m bench.follow BLOCKS      the serving process: a line of JSON in, a line of JSON out
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.cli.stack import STOP_SECONDS, Child
from kvstore.clock import SystemClock
from kvstore.core.carried import Ledger
from kvstore.core.fingerprints import IN_DRAM, ON_SSD, Prints
from kvstore.core.listing import Listing
from kvstore.limits import CHANGES_KEPT
from kvstore.metadata import open_metadata
from kvstore.metadata.records import NodeRecord
from kvstore.node.directory import DirectoryService
from kvstore.rpc.channel import open_channel
from kvstore.rpc.server import Server
from kvstore.wire.v1 import conductor_pb2_grpc, directory_pb2_grpc
from kvstore.wire.v1 import directory_pb2 as pb

RUNS = 3
TAKES = ("blocks",)  # options of the command
BLOCKS = (5_000_000,)
LIMIT_S = 10.0  # for a conductor, from exec
CHANGES, CHANGES_BATCH = 400_000, 1_000  # at once: fewer than a node keeps for who is behind
NODE_ID, EPOCH = "bench", 1
DEADLINE_S = 300.0
ASKED = 4_096  # blocks by which it is seen whether a conductor knows a state
_CHANGED = 77  # a fingerprint that each round of changes ends with

assert CHANGES < CHANGES_KEPT

Say = Callable[[str], None]


def run(runs: int, say: Say, blocks: Sequence[int] | None = None) -> Report:
    return Report(
        name="follow",
        unit="s",
        against=f"{LIMIT_S:.0f} s",
        ratio_is=f"seconds from a conductor's start until it knows every block / {LIMIT_S:.0f}",
        goal=1.0,
        sense=Goal.AT_MOST,
        rows=tuple(row for count in blocks or BLOCKS for row in _rows(count, runs, say)),
    )


def _rows(blocks: int, runs: int, say: Say) -> list[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-")))
        say(f"making up {blocks} blocks")
        node = stack.enter_context(_Node.started(blocks))
        asyncio.run(_announce(directory / "metadata.db", node.address))
        empty = _empty_bytes(directory, say)
        snapshots, changes, caught, heard, resident = [], [], [], [], []
        for number in range(runs):
            snapshots.append(_snapshot(node, blocks))
            with _conductor(directory, "conductor") as (child, stub, began):
                _until(partial(_knows, stub, node.some, node.tiers), "every block")
                caught.append(time.perf_counter() - began)
                resident.append(psutil.Process(child.pid).memory_info().rss - empty)
                changes.append(_changes(node))
                began = time.perf_counter()
                node.ask(change=CHANGES)
                _until(partial(_knows, stub, node.last, node.tiers), "every change")
                heard.append(time.perf_counter() - began)
            say(
                f"run {number + 1} of {runs}: snapshot {snapshots[-1][0]:.2f} s, conductor "
                f"{caught[-1]:.2f} s, {CHANGES} changes {changes[-1][0]:.2f} s"
            )
    sizes = {"blocks": blocks}
    seconds = [one for one, _, _ in snapshots]
    sent = {
        "blocks_per_s": blocks / float(np.median(seconds)),
        "wire_bytes_per_block": snapshots[-1][1] / blocks,
        "node_stall_ms_max": max(stall for _, _, stall in snapshots),
    }
    changed = [one for one, _ in changes]
    told = {
        "changes_per_s": CHANGES / float(np.median(changed)),
        "wire_bytes_per_change": changes[-1][1] / CHANGES,
    }
    known = {
        "blocks_per_s": blocks / float(np.median(caught)),
        "resident_bytes_per_block": float(np.median(resident)) / blocks,
        "resident_bytes_empty": empty,
    }
    spread = Spread.of([one / LIMIT_S for one in caught])
    whole, name = float(np.median(caught)), f"a new conductor is caught up, {blocks} blocks"
    return [
        Row(name, sizes, runs, whole, LIMIT_S, spread.median, spread, also=known),
        _told(f"snapshot of {blocks} blocks", sizes, seconds, sent),
        _told(f"{CHANGES} changes to a follower", sizes, changed, told),
        _told(
            f"{CHANGES} changes to a conductor",
            sizes,
            heard,
            {"changes_per_s": CHANGES / float(np.median(heard))},
        ),
    ]


def _told(name: str, sizes: Any, seconds: list[float], also: dict[str, float]) -> Row:
    median = float(np.median(seconds))
    return Row(name, sizes, len(seconds), median, counted=False, also=also)


class _Node:
    """The serving process, as this one sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = str(self.ask()["address"])
        self.some = _made_up(int(process.args[-1]))[:ASKED]  # type: ignore[index]
        self.tiers, self.last = IN_DRAM, np.array([_CHANGED], np.uint64)

    @classmethod
    @contextmanager
    def started(cls, blocks: int) -> Iterator[_Node]:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.follow", str(blocks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        try:
            yield cls(process)
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()

    def ask(self, **what: int) -> dict[str, Any]:
        """What the process says once it has done as it was told."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if what.get("change"):
            self.tiers = ON_SSD if self.tiers != ON_SSD else IN_DRAM | ON_SSD
            what["tiers"] = self.tiers
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the serving process ended with {self._process.wait(30)}")
        return dict(json.loads(line))


def _snapshot(node: _Node, blocks: int) -> tuple[float, int, float]:
    """Seconds and bytes of one, and the longest time that it kept the node's loop from others."""
    node.ask()
    with open_channel(node.address) as channel:
        stub = directory_pb2_grpc.DirectoryStub(channel)
        began, size, count = time.perf_counter(), 0, 0
        follow = stub.Follow(pb.FollowRequest(), timeout=DEADLINE_S)
        for reply in follow:
            size += reply.ByteSize()
            if reply.HasField("entries"):
                break
            count += len(reply.snapshot.tiers)
        took = time.perf_counter() - began
        follow.cancel()
    if count < blocks:
        raise RuntimeError(f"a snapshot of {count} blocks, and there are {blocks}")
    return took, size, node.ask()["stall_ms"]


def _changes(node: _Node) -> tuple[float, int]:
    """Seconds and bytes until a follower has heard them all."""
    with open_channel(node.address) as channel:
        stub = directory_pb2_grpc.DirectoryStub(channel)
        stands = node.ask()["sequence"]
        request = pb.FollowRequest(epoch=EPOCH, sequence=stands)
        follow = stub.Follow(request, timeout=DEADLINE_S)
        if next(follow).begin.snapshot:
            raise RuntimeError("the node no longer knows its last change")
        began, size = time.perf_counter(), 0
        last = node.ask(change=CHANGES)["sequence"]
        for reply in follow:
            size += reply.ByteSize()
            if reply.HasField("begin"):
                raise RuntimeError("the follower fell too far behind: it measures no changes")
            if reply.entries.sequence >= last:
                break
        took = time.perf_counter() - began
        follow.cancel()
    return took, size


def _knows(stub: Any, prints: Prints, tiers: int) -> bool:
    request = pb.HoldersRequest(fingerprints=prints.astype("<u8").tobytes())
    reply = stub.Holders(request, timeout=DEADLINE_S)
    if reply.approximate or not reply.holders:
        return False
    return bool((np.frombuffer(reply.holders[0].tiers, np.uint8) == tiers).all())


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the conductor did not know {what} within {DEADLINE_S:.0f} s")
        time.sleep(0.02)


def _empty_bytes(directory: Path, say: Say) -> int:
    """Resident bytes of a conductor of a pool without nodes."""
    (directory / "nobody").mkdir()
    with _conductor(directory / "nobody", "empty") as (child, stub, _):
        stub.Holders(pb.HoldersRequest(fingerprints=bytes(8)), timeout=DEADLINE_S)
        size = psutil.Process(child.pid).memory_info().rss
    say(f"an empty conductor has {size >> 20} MiB")
    return size


@contextmanager
def _conductor(directory: Path, name: str) -> Iterator[tuple[Child, Any, float]]:
    """One that serves, a stub of it, and when it was started."""
    metadata = os.fspath(directory / "metadata.db")
    child = Child(name, ["conductor", "--metadata", metadata], directory)
    began = time.perf_counter()
    try:
        child.start()
        child.wait_ready()
        with open_channel(child.address) as channel:
            yield child, conductor_pb2_grpc.ConductorStub(channel), began
    finally:
        child.stop()
        child.reap(time.monotonic() + STOP_SECONDS)


async def _announce(path: Path, address: str) -> None:
    metadata = open_metadata(os.fspath(path))
    try:
        record = NodeRecord(NODE_ID, EPOCH, address, {}, (), {}, "serving")
        await metadata.put(record.key(), record.encode())
    finally:
        await metadata.close()


# The serving process


def _made_up(blocks: int) -> Prints:
    return np.random.default_rng(1).integers(0, 1 << 64, blocks, dtype=np.uint64)


async def _serve(blocks: int) -> None:
    listing, prints = Listing(), _made_up(blocks)
    listing.put_all(np.unique(prints), IN_DRAM)
    directory = DirectoryService(NODE_ID, EPOCH, listing, Ledger(), SystemClock())
    add: Callable[[grpc.aio.Server], None] = partial(
        directory_pb2_grpc.add_DirectoryServicer_to_server, directory
    )
    server = Server("127.0.0.1:0", {"moonpool.v1.Directory": add})
    await server.start()
    stall = [0.0]
    ticking = asyncio.create_task(_tick(stall))
    loop = asyncio.get_running_loop()
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            told = json.loads(line)
            if told.get("change"):
                await _change(listing, prints, told["change"], told["tiers"])
            said = {
                "address": server.address,
                "sequence": listing.sequence,
                "stall_ms": 1e3 * stall[0],
            }
            stall[0] = 0.0
            print(json.dumps(said), flush=True)
    finally:
        ticking.cancel()
        await server.stop(0.2)


async def _change(listing: Listing, prints: Prints, count: int, tiers: int) -> None:
    """So many changes, as quickly as they can be made while others have their turn."""
    for at in range(0, count, CHANGES_BATCH):
        some = np.unique(np.take(prints, np.arange(at, at + CHANGES_BATCH), mode="wrap"))
        listing.put_all(some, tiers)
        await asyncio.sleep(0)
    listing.put_all(np.array([_CHANGED], np.uint64), tiers)


async def _tick(stall: list[float]) -> None:
    """How much later than it should this task has its turn, at most."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        stall[0] = max(stall[0], time.perf_counter() - began - 0.001)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
