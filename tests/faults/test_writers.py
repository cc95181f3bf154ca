"""Writers and readers that die, stop, and come back: memory is given on only when they are gone."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from kvstore.block import Chain
from kvstore.memory.arena import Arena
from kvstore.wire.v1 import kv_pb2 as pb
from tests import tree
from tests.nodes import (
    LAYOUT,
    Caller,
    NodeProcess,
    eventually,
    mapped,
    payload,
    prompt,
    running,
)

SLOTS = 128  # of 8 KiB, in the node of these tests
HALVES = (pb.Fragment(heads=1), pb.Fragment(head_first=1))


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    with running(dram="1MiB", slab="256KiB") as started:
        yield started


@contextmanager
def child(*arguments: object) -> Iterator[psutil.Popen]:
    """A process of `tests.faults.child`, once it is ready; killed at the end."""
    command = [sys.executable, "-m", "tests.faults.child", *map(str, arguments)]
    process = psutil.Popen(command, cwd=tree.ROOT, stdout=subprocess.PIPE)
    try:
        readable, _, _ = select.select([process.stdout], [], [], 30.0)
        assert readable and process.stdout.readline() == b"ready\n", "the child did not start"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@contextmanager
def scribbler(session: Caller, offset: int) -> Iterator[psutil.Popen]:
    """A process that writes a slot through this session's mapping, and nothing but that."""
    opened = session.opened
    where = (opened.shm_socket, opened.shm_token.hex(), opened.arena_bytes, offset)
    with child("scribble", *where) as process:
        yield process


def stop(process: psutil.Popen) -> None:
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: process.status() == psutil.STATUS_STOPPED)


def changes(arena: Arena, offset: int) -> None:
    """Return once somebody has written the slot's payload."""
    at = offset + LAYOUT.slot_bytes - 1
    before = arena.bytes[at]
    eventually(lambda: arena.bytes[at] != before)


def filled(caller: Caller) -> tuple[Chain, int]:
    """Blocks in every slot that can be had, read by a chain; and how many there are."""
    number = 1_000
    while caller.counters()["evicted_blocks"] == 0:
        caller.put(prompt(number, 8))
        number += 1
    room = caller.stats().blocks
    blocks = prompt(9_999, room)
    caller.put(blocks)
    assert caller.match(blocks) == (room, pb.HIT)
    return blocks, room


def untouched(caller: Caller, blocks: Chain, offset: int) -> None:
    """None of the blocks is in the slot, and each has its bytes."""
    opened = caller.ask("Open", **caller.about(blocks))
    assert offset not in opened.slot_offsets
    caller.ask("Close", handles=opened.handles)
    assert caller.get(blocks)[1] == [payload(h) for h in blocks.hashes]
    assert caller.counters()["damaged_blocks"] == 0


def test_a_writer_that_dies_leaves_no_slot_behind(node: NodeProcess, caller: Caller) -> None:
    with child("write", node.address, 1) as writer:
        stats = caller.stats()
        assert (stats.windows, stats.sessions) == (1, 2)
        assert caller.match(prompt(1)) == (0, pb.UNSEALED)
        writer.kill()
        eventually(lambda: caller.stats().windows == 0)
    stats = caller.stats()
    assert stats.slabs_empty == stats.slabs and stats.sessions == 1
    assert caller.match(prompt(1)) == (0, pb.ABSENT)
    assert filled(caller)[1] == SLOTS


def test_a_reader_that_dies_leaves_no_pin_behind(node: NodeProcess, caller: Caller) -> None:
    caller.put(prompt(1))
    with child("read", node.address, 1) as reader:
        assert caller.stats().pins == 1
        caller.ask("Remove", **caller.about(prompt(1)))
        assert caller.stats().slabs_empty < caller.stats().slabs, "the reader may still look at it"
        reader.kill()
        eventually(lambda: caller.stats().pins == 0)
    stats = caller.stats()
    assert stats.slabs_empty == stats.slabs and stats.sessions == 1


def test_a_stopped_writer_whose_session_broke_writes_nobody_elses_memory(
    node: NodeProcess, caller: Caller
) -> None:
    writer = node.caller()
    offset = writer.reserve(prompt(1)).slot_offsets[0]
    with mapped(caller) as arena, scribbler(writer, offset) as process:
        stop(process)
        writer.stream.cancel()
        eventually(lambda: caller.stats().sessions == 1)
        assert caller.match(prompt(1)) == (0, pb.ABSENT), "the block is given up"
        assert caller.stats().windows == 1, "its memory is not"
        blocks, room = filled(caller)
        assert room == SLOTS - 1
        process.send_signal(signal.SIGCONT)
        changes(arena, offset)
        untouched(caller, blocks, offset)
        process.kill()
        eventually(lambda: caller.stats().windows == 0)
        assert caller.put(prompt(2)) == [pb.PutReply.STORED]
        assert caller.stats().blocks == SLOTS, "now the slot is somebody else's"


def test_a_stopped_writer_whose_peer_aborted_writes_nobody_elses_memory(
    node: NodeProcess, caller: Caller
) -> None:
    peer, writer, block = node.caller(), node.caller(), prompt(1)
    window = peer.reserve(block, writer_group="tp2", fragment=HALVES[0])
    theirs = writer.reserve(block, writer_group="tp2", fragment=HALVES[1])
    offset = theirs.slot_offsets[0]
    assert offset == window.slot_offsets[0]
    with mapped(caller) as arena, scribbler(writer, offset) as process:
        stop(process)
        peer.ask("Abort", handles=window.handles)
        stats = caller.stats()
        assert (stats.windows, stats.counters["aborted_blocks"]) == (1, 1)
        assert caller.match(block) == (0, pb.ABSENT)
        blocks, room = filled(caller)
        assert room == SLOTS - 1
        process.send_signal(signal.SIGCONT)
        changes(arena, offset)
        untouched(caller, blocks, offset)
        process.kill()
        writer.ask("Abort", handles=theirs.handles)
        assert caller.stats().windows == 0, "it says itself that it writes no more"
        assert caller.put(prompt(2)) == [pb.PutReply.STORED]
        assert caller.stats().blocks == SLOTS


def test_a_stopped_writer_of_a_killed_node_cannot_touch_the_next_nodes_memory(
    node: NodeProcess, caller: Caller
) -> None:
    offset = caller.reserve(prompt(1)).slot_offsets[0]
    with mapped(caller) as old, scribbler(caller, offset) as process:
        stop(process)
        node.kill()
        node.start()
        again = node.caller()
        again.register()
        blocks, room = filled(again)
        assert room == SLOTS, "the new node's memory is all its own"
        process.send_signal(signal.SIGCONT)
        changes(old, offset)
        assert again.get(blocks)[1] == [payload(h) for h in blocks.hashes]
        assert again.counters()["damaged_blocks"] == 0
