"""A disk that fills, fails, forgets or turns read-only below a running node: DRAM goes on serving.

Nothing wrong is read, nothing that the disk did not take is acknowledged, and what was before is
found by the next start.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import lmdb
import psutil
import pytest

from kvstore.block import Keyed, foreign
from kvstore.layout import IDENTITY_OFFSET, PLACE_OFFSET, TABLE_OFFSET
from kvstore.limits import KiB
from kvstore.wire.v1 import kv_pb2 as pb
from tests.faults.system_calls import spoilt
from tests.nodes import (
    CALL_SECONDS,
    LAYOUT,
    SPEC,
    Caller,
    Refusal,
    eventually,
    payload,
    put_parts,
    running,
)

Mounted = Callable[..., Path]
DRAM_BLOCKS, CHUNK = 256, 100
SMALL = {"dram": "2MiB", "slab": "256KiB"}


def some(name: str, count: int) -> Keyed:
    """Blocks that stand alone."""
    return foreign(SPEC.digest, 0, [f"{name} {n}" for n in range(count)], LAYOUT.block_tokens)


def put(caller: Caller, blocks: Keyed, **header: bool) -> list[int]:
    parts = put_parts(blocks, [payload(name) for name in blocks.hashes], **header)  # type: ignore[arg-type]
    return list(caller.kv.Put(parts, timeout=CALL_SECONDS).stored)


def put_to_ssd(caller: Caller, blocks: Keyed) -> None:
    """Put many, no faster than they are written; the last durable ones vouch for all."""
    for first in range(0, len(blocks), CHUNK):
        before = caller.counters()["stored_blocks"]
        part = blocks.between(first, min(first + CHUNK, len(blocks)))
        put(caller, part)
        eventually(lambda: caller.counters()["stored_blocks"] == before + len(part))  # noqa: B023


def refused(caller: Caller, blocks: Keyed) -> Refusal:
    """A durable put that the node cannot keep; the block is in DRAM all the same."""
    with pytest.raises(grpc.RpcError) as caught:
        put(caller, blocks, durable=True)
    return Refusal(caught.value)


def read(caller: Caller, blocks: Keyed) -> list[int]:
    """The outcome of each; what is there has its bytes. A slow disk is asked for some at a time."""
    outcomes = list[int]()
    for first in range(0, len(blocks), CHUNK):
        part = blocks.between(first, min(first + CHUNK, len(blocks)))
        some_outcomes, found = caller.get(part)  # type: ignore[arg-type]
        for name, outcome, data in zip(part.hashes, some_outcomes, found, strict=True):
            assert outcome != pb.HIT or data == payload(name), "wrong bytes"
        outcomes += some_outcomes
    return outcomes


def all_there(caller: Caller, blocks: Keyed) -> None:
    assert set(read(caller, blocks)) == {pb.HIT}


def serves_from_dram(caller: Caller, name: str) -> None:
    blocks = some(name, 20)
    assert put(caller, blocks) == [pb.PutReply.STORED] * 20
    all_there(caller, blocks)


@contextmanager
def filled(path: Path) -> Iterator[None]:
    """Another process's file takes what room there is."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4 * KiB))
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def outgrown(index: Path) -> Iterator[None]:
    """Without the room that the index has beyond what it uses, as if it had used that up.

    A reader meanwhile keeps it from using a page again that it frees from now on.
    """
    with lmdb.open(os.fspath(index), readonly=True) as environment, environment.begin():
        used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        os.truncate(index / "data.mdb", used)
        yield


def refused_soon(caller: Caller, times: int) -> tuple[list[Refusal], list[Keyed]]:
    """So many refusals of durable puts, and those put before: pages freed earlier take a few."""
    refusals, taken = list[Refusal](), list[Keyed]()
    for number in range(100):
        block = some(f"number {number}", 1)
        try:
            put(caller, block, durable=True)
        except grpc.RpcError as error:
            refusals.append(Refusal(error))
        else:
            taken.append(block)
        if len(refusals) == times:
            return refusals, taken
    raise AssertionError(f"refused {len(refusals)} times only, of 100")


def test_a_tier_that_is_full_makes_room_by_eviction_and_puts_go_on(mounted: Mounted) -> None:
    path = mounted("tmpfs", "size=16m")
    with running(**SMALL, ssd="8MiB", ssd_at=path / "ssd") as node:
        caller = node.caller()
        caller.register()
        blocks = some("many", 1_500)  # of which 1,024 fit
        put_to_ssd(caller, blocks)
        assert caller.counters()["evicted_blocks"] >= 1_500 - 1_024 - DRAM_BLOCKS
        outcomes = read(caller, blocks)
        assert set(outcomes) == {pb.HIT, pb.EVICTED}
        last = some("last", 10)
        assert put(caller, last, durable=True) == [pb.PutReply.STORED] * 10
        node.kill()
        node.start()
        all_there(node.caller(), last)


def test_a_full_filesystem_is_said_and_written_to_again_once_there_is_room(
    mounted: Mounted,
) -> None:
    path = mounted("tmpfs", "size=16m")
    with running(**SMALL, ssd="8MiB", ssd_at=path / "ssd") as node:
        caller = node.caller()
        caller.register()
        before, meanwhile, after = some("before", 300), some("meanwhile", 200), some("after", 5)
        put_to_ssd(caller, before)
        with outgrown(path / "ssd" / "index"), filled(path):
            put(caller, meanwhile)
            refusals, taken = refused_soon(caller, 3)
            assert {one.kind for one in refusals} == {"Unavailable"}
            assert all("in memory and not on SSD" in one.text for one in refusals)
            assert all("No space left" in one.text for one in refusals), refusals
            serves_from_dram(caller, "served")
            all_there(caller, before)
        put(caller, after)
        eventually(lambda: read(caller, after) and _stored(caller, after))
        node.kill()
        node.start()
        caller = node.caller()
        for blocks in (before, after, *taken):
            all_there(caller, blocks)


def _stored(caller: Caller, blocks: Keyed) -> bool:
    try:
        put(caller, blocks, durable=True)
    except grpc.RpcError as error:
        assert Refusal(error).kind == "Unavailable"
        return False
    return True


def test_a_sync_that_fails_ends_acknowledgements_and_nothing_else() -> None:
    with running(**SMALL, ssd="64MiB") as node:
        caller = node.caller()
        caller.register()
        before = some("before", 600)
        put_to_ssd(caller, before)
        with spoilt(node, "fdatasync", "error=EIO"):
            found = refused(caller, some("lost", 1))
            assert found.kind == "Unavailable" and "Input/output error" in found.text
            serves_from_dram(caller, "served")
            all_there(caller, before)
            assert caller.counters()["ssd_failures"] == 1
        assert refused(caller, some("later", 1)).kind == "Unavailable", "the kernel's next answer"
        all_there(caller, before)
        node.kill()
        node.start()
        caller = node.caller()
        all_there(caller, before)
        assert put(caller, some("anew", 5), durable=True) == [pb.PutReply.STORED] * 5


def test_a_filesystem_that_turns_read_only_is_a_state_and_not_a_crash(
    tmp_path: Path,
) -> None:
    with ext4(tmp_path) as path, running(**SMALL, ssd="16MiB", ssd_at=path / "ssd") as node:
        caller = node.caller()
        caller.register()
        before = some("before", 600)
        put_to_ssd(caller, before)
        trigger_error(path)
        found = refused(caller, some("lost", 1))
        assert found.kind == "Unavailable" and "Read-only file system" in found.text
        serves_from_dram(caller, "served")
        all_there(caller, before)
        assert node.exited is None


@contextmanager
def ext4(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that turns read-only at its first error."""
    image, place = tmp_path / "image", tmp_path / "ext4"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    for command in (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop,errors=remount-ro", str(image), str(place)],
    ):
        try:
            ran = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError as missing:
            pytest.skip(f"{missing.filename} is not installed")
        if ran.returncode:
            pytest.skip(f"a loop device cannot be mounted here: {ran.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def trigger_error(path: Path) -> None:
    found = [one for one in psutil.disk_partitions(all=True) if one.mountpoint == str(path)]
    trigger = Path("/sys/fs/ext4") / Path(found[0].device).name / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this kernel's ext4 has no trigger_fs_error")
    trigger.write_text("a test")


FLIPS, PARTS = 250, 4  # in parts: a thousand take longer than one test may
PLACES = {  # in a slot: every byte that stands for something
    "payload": range(LAYOUT.head_bytes, LAYOUT.head_bytes + LAYOUT.block_bytes(4)),
    "strip table": range(TABLE_OFFSET, TABLE_OFFSET + 8 * LAYOUT.strips),
    "identity": range(IDENTITY_OFFSET, TABLE_OFFSET),
    "head": range(PLACE_OFFSET + 16),
}


@pytest.mark.parametrize("seed", range(PARTS))
def test_every_flipped_bit_on_a_running_nodes_disk_costs_its_block_and_no_other(seed: int) -> None:
    dice = random.Random(seed)
    with running(**SMALL, ssd="64MiB") as node:
        caller = node.caller()
        caller.register()
        blocks = some("flipped", FLIPS + 100)
        put_to_ssd(caller, blocks)
        put_to_ssd(caller, some("others", 2 * DRAM_BLOCKS))  # DRAM has none of them any more
        chosen = dict.fromkeys(dice.sample(blocks.hashes, FLIPS))
        flip(node.directory / "ssd", set(chosen), dice)
        outcomes = dict(zip(blocks.hashes, read(caller, blocks), strict=True))
        assert {name for name in outcomes if outcomes[name] == pb.DAMAGED} == set(chosen)
        assert {outcomes[name] for name in outcomes if name not in chosen} == {pb.HIT}
        assert caller.counters()["damaged_blocks"] == FLIPS
        assert read(caller, blocks).count(pb.DAMAGED) == FLIPS, "a miss stays one"
        assert caller.stats().pins == caller.stats().windows == 0
        healed = blocks.between(0, 100)
        put_to_ssd(caller, _only(healed, set(chosen)))
        all_there(caller, healed)


def _only(blocks: Keyed, names: set[bytes]) -> Keyed:
    return Keyed(tuple(h for h in blocks.hashes if h in names), blocks.block_tokens)


def flip(directory: Path, wanted: set[bytes], dice: random.Random) -> None:
    """One bit of each of these blocks, of its head, its table or its payload."""
    named = {payload(name)[:64]: name for name in wanted}
    places = list(PLACES.values())
    for path in sorted(directory.glob("blocks-*")):
        with path.open("r+b") as file:
            data = file.read()
            for slot in range(0, len(data), LAYOUT.slot_bytes):
                head = slot + LAYOUT.head_bytes
                name = named.pop(data[head : head + 64], None)
                if name is None:
                    continue
                at = slot + dice.choice(places[len(named) % len(places)])
                file.seek(at)
                file.write(bytes([data[at] ^ 1 << dice.randrange(8)]))
            file.flush()
            os.fsync(file.fileno())
    assert not named, "blocks that are in no file"
