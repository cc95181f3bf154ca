"""Blocks over UCX between real processes: what moves, what must not, who survives whose death."""

from __future__ import annotations

import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import psutil
import pytest
import xxhash

from kvstore.client import Client
from kvstore.errors import ConfigError, Invalid, Unavailable
from kvstore.layout import SlotLayout
from kvstore.limits import UCX_BLOB_BYTES_MAX, UCX_REGIONS_MAX, MiB
from kvstore.spec import KVSpec
from kvstore.transfer import calls
from kvstore.transfer.frames import CALL, REGION, Attach, Op, Segment, Status
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_agent import shared_agent
from kvstore.transfer.ucx_lane import UcxLane
from tests import tree
from tests.client.kv import Cache, spec_of, truth_of
from tests.nodes import NodeProcess, eventually, prompt, running
from tests.transfer.ucx_caller import SPEC as LOOPED
from tests.transfer.ucx_rig import (
    LAYOUT,
    OFFERED,
    ONE,
    POISON,
    SECONDS,
    SPEC,
    connected,
    landed,
    landing,
    mover_of,
    opened,
    poisoned,
    session,
)

pytest.importorskip("nixl_cu12")


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with running(dram="64MiB", options=OFFERED) as started:
        yield started


@pytest.fixture
def own_node() -> Iterator[NodeProcess]:
    """One whose mover this test may kill."""
    with running(dram="64MiB", options=OFFERED) as started:
        yield started


def trip(node: NodeProcess, seed: int = 1, blocks: int = 5, spec: KVSpec = SPEC) -> bool:
    """Whether blocks that are put come back the same."""
    tokens = blocks * spec.groups[0].block_tokens
    truth = truth_of(spec, tokens, seed)
    with Client.at(node.address, spec, transport="ucx", deadline_seconds=20.0) as client:
        chain = client.chain(np.arange(tokens) + 1000 * seed)
        source, target = Cache(spec, tokens, seed=seed), Cache(spec, tokens, seed=seed + 1)
        source.fill(truth)
        client.put(chain, source.memory(client))
        found = client.get(chain, target.memory(client))
        return found.blocks == blocks and target.holds(truth)


def test_a_block_lands_where_the_reader_says_and_is_proven(node: NodeProcess) -> None:
    with session(node) as caller, connected(caller) as stream:
        reply, data = opened(caller, 1)
        lane, memory = UcxLane(stream), poisoned(2 * LAYOUT.payload_bytes)
        into = landing(memory, LAYOUT.payload_bytes)
        roots = np.frombuffer(reply.roots[0], dtype=np.uint8).reshape(1, -1)
        for came in lane.read([reply.handles[0]], into, ONE, LAYOUT.whole):
            assert into.proven(came, LAYOUT.whole, roots).all()
        assert memory[LAYOUT.payload_bytes :].tobytes() == data
        assert (memory[: LAYOUT.payload_bytes] == POISON).all()
        lane.close()


def test_blocks_that_are_no_whole_words_go_and_come(node: NodeProcess) -> None:
    """A node takes none at a place that is no word's."""
    odd = spec_of("odd", layers=3, kv_heads=1, head_dim=5, block_tokens=3, dtype="uint8")
    assert SlotLayout.of(odd, 0).payload_bytes % 8
    assert trip(node, 17, spec=odd)


def test_a_forged_a_closed_and_anothers_handle_move_no_byte(node: NodeProcess) -> None:
    with session(node) as caller, session(node) as other, connected(caller) as stream:
        reply, _ = opened(caller, 2)
        foreign, _ = opened(other, 2)
        handle = reply.handles[0]
        forged = bytes([handle[0] ^ 1]) + handle[1:]
        lane, memory = UcxLane(stream), poisoned()
        for wrong in (forged, foreign.handles[0]):
            assert not landed(lane, wrong, landing(memory))
        caller.ask("Close", handles=[handle])
        assert not landed(lane, handle, landing(memory))
        assert (memory == POISON).all()
        lane.close()


def test_of_blocks_of_several_layouts_each_says_what_it_is_and_no_more(node: NodeProcess) -> None:
    """A table as long as another block's would go on with what lies behind the slot."""
    wide = spec_of("wide", layers=1_024, block_tokens=8)
    with session(node) as caller, connected(caller) as stream:
        caller.register(wide)
        chain, size = prompt(15, spec=wide), SlotLayout.of(wide, 0).root_bytes
        caller.put(chain, spec=wide)
        longer = caller.ask("Open", **caller.about(chain, wide))
        shorter, _ = opened(caller, 15)
        handles = [longer.handles[0], shorter.handles[0]]
        lane = UcxLane(stream)
        region = lane.show(memory := poisoned(2 * MiB))
        stream.send(CALL.pack(Op.PULL, len(handles[0]), 2, 0, 1, 0, 1, 0, region), *handles)
        stream.send(struct.pack("<QQ", 0, MiB))
        assert stream.receive(2) == bytes([Status.MOVED] * 2)
        said = [stream.receive(size), stream.receive(LAYOUT.root_bytes)]
        roots = [xxhash.xxh3_128_digest(one) for one in said]
        assert roots == [longer.roots[0], shorter.roots[0]]
        assert calls.look(stream, handles, LAYOUT.whole).found.all(), "nothing came behind them"
        assert (memory[MiB:] != POISON).any()
        lane.close()


def test_a_handle_that_expired_moves_no_byte(node: NodeProcess) -> None:
    with session(node) as caller, connected(caller) as stream:
        reply, _ = opened(caller, 12, pin_ms=1)
        handle, lane, memory = reply.handles[0], UcxLane(stream), poisoned()
        eventually(lambda: not calls.look(stream, [handle], LAYOUT.whole).found.any(), SECONDS)
        assert not landed(lane, handle, landing(memory))
        assert (memory == POISON).all()
        lane.close()


def test_what_is_pushed_into_a_closed_or_anothers_window_is_not_taken(node: NodeProcess) -> None:
    with session(node) as caller, session(node) as other, connected(caller) as stream:
        chain, lane, memory = prompt(13, spec=SPEC), UcxLane(stream), poisoned()
        source = landing(memory)
        source.hash(ONE, LAYOUT.whole)
        mine = caller.reserve(chain, SPEC).handles[0]
        theirs = other.reserve(chain, SPEC).handles[0]
        push = partial(lane.write, source=source, rows=ONE, fragment=LAYOUT.whole)
        assert push([theirs]).tolist() == [Status.REFUSED]
        assert push([mine]).tolist() == [Status.MOVED]
        assert push([mine]).tolist() == [Status.WRITTEN], "what was written stays as it is"
        caller.ask("Abort", handles=[mine])
        assert push([mine]).tolist() == [Status.LAPSED]
        lane.close()


@pytest.mark.parametrize("place", [4, 8, LAYOUT.payload_bytes, 2**63 + 8, 2**64 - 8])
def test_a_place_that_is_not_wholly_in_the_region_gets_no_byte(
    node: NodeProcess, place: int
) -> None:
    with session(node) as caller, connected(caller) as stream:
        reply, _ = opened(caller, 3)
        lane, memory = UcxLane(stream), poisoned()
        into = landing(memory)
        into.offsets = np.array([place], dtype=np.uint64)
        assert not landed(lane, reply.handles[0], into)
        assert (memory == POISON).all()
        lane.close()


def test_memory_of_a_call_that_was_given_up_is_kept_until_the_node_has_hung_up() -> None:
    """Until then bytes may come, and what lay there next would be written over."""
    ours, node_side = socket.socketpair()
    node_side.send(bytes([Attach.KNOWN] * 2))
    lane, memory = UcxLane(DataStream(ours, stall_seconds=0.1)), poisoned()
    agent = shared_agent()
    with pytest.raises(Unavailable, match="stood still"):
        landed(lane, bytes(8), landing(memory))
    lane.close()
    assert agent.knows(memory)
    node_side.close()
    eventually(lambda: not agent.knows(memory), SECONDS)


def test_memory_is_kept_where_no_thread_can_be_had_to_wait_for_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever gave the call up hears of that alone, and the node that it is to hang up."""
    ours, node_side = socket.socketpair()
    node_side.send(bytes([Attach.KNOWN] * 2))
    lane, memory = UcxLane(DataStream(ours, stall_seconds=0.1)), poisoned()
    with pytest.raises(Unavailable, match="stood still"):
        landed(lane, bytes(8), landing(memory))

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refused)
        lane.close()
    node_side.settimeout(SECONDS)
    while node_side.recv(1 << 16):
        pass
    assert shared_agent().knows(memory)
    node_side.close()
    lane._part()


def test_a_region_that_was_not_attached_ends_the_connection(node: NodeProcess) -> None:
    with session(node) as caller, connected(caller) as stream:
        reply, _ = opened(caller, 4)
        handle = reply.handles[0]
        call = CALL.pack(Op.PULL, len(handle), 1, 0, 1, 0, 1, 0, UCX_REGIONS_MAX)
        stream.send(call, handle)
        with pytest.raises(Unavailable):
            stream.receive(1)
    assert trip(node, 4)


def test_memory_that_the_agent_did_not_register_gets_no_byte(node: NodeProcess) -> None:
    """The region is what its caller says; beyond what was registered NIXL moves nothing."""
    with session(node) as caller, connected(caller) as stream:
        reply, _ = opened(caller, 5)
        agent, memory = shared_agent(), poisoned(2 * MiB)
        region = agent.register(memory[: LAYOUT.payload_bytes])
        about = REGION.pack(agent.name, region.address, len(memory), *region.registration)
        stream.send(CALL.pack(Op.ATTACH, 0, 0, 0, 0, 0, 0, 0, len(region.blob)), about, region.blob)
        assert stream.receive(1)[0] == Attach.KNOWN
        handle = reply.handles[0]
        whole = (0, LAYOUT.layers, 0, LAYOUT.kv_heads)
        stream.send(CALL.pack(Op.PULL, len(handle), 1, *whole, 0, 0), handle)
        stream.send(struct.pack("<Q", 1 * MiB))
        with pytest.raises(Unavailable):
            stream.receive(1 + LAYOUT.root_bytes)
        assert (memory == POISON).all()
        agent.forget(region)
    assert trip(node, 5)


@pytest.mark.parametrize("kind", [Segment.VRAM, 7])
def test_memory_that_is_said_to_be_of_another_kind_than_it_is_gets_no_byte(
    node: NodeProcess, kind: int
) -> None:
    """The mover asks NIXL for memory of the kind that its caller said, and there is none."""
    with session(node) as caller, connected(caller) as stream:
        reply, _ = opened(caller, 14)
        agent, memory = shared_agent(), poisoned()
        region = agent.register(memory)
        about = REGION.pack(agent.name, region.address, region.size, region.registration[0], kind)
        stream.send(CALL.pack(Op.ATTACH, 0, 0, 0, 0, 0, 0, 0, len(region.blob)), about, region.blob)
        handle, whole = reply.handles[0], (0, LAYOUT.layers, 0, LAYOUT.kv_heads)
        with pytest.raises(Unavailable):
            assert stream.receive(1)[0] == Attach.KNOWN
            assert kind == Segment.VRAM, "no node knows another"
            stream.send(CALL.pack(Op.PULL, len(handle), 1, *whole, 0, 0), handle)
            stream.send(struct.pack("<Q", 0))
            stream.receive(1 + LAYOUT.root_bytes)
        assert (memory == POISON).all()
        agent.forget(region)
    assert trip(node, 14)


def test_damaged_words_of_an_agent_end_nothing_but_the_mover(own_node: NodeProcess) -> None:
    """UCX aborts on some of them: the node serves on, and so does its next mover."""
    dice, pid = random.Random(20), own_node.pid
    agent, memory = shared_agent(), np.zeros(1 << 16, dtype=np.uint8)
    region = agent.register(memory)
    with session(own_node) as caller:
        for _ in range(6):
            blob = bytearray(region.blob)
            for _ in range(dice.randint(1, 8)):
                blob[dice.randrange(70, len(blob))] = dice.randrange(256)
            with connected(caller) as stream:
                about = REGION.pack(agent.name, region.address, region.size, *region.registration)
                stream.send(CALL.pack(Op.ATTACH, 0, 0, 0, 0, 0, 0, 0, len(blob)), about, blob)
                assert stream.receive(1)[0] in (Attach.KNOWN, Attach.NOT_REACHED)
    agent.forget(region)
    assert own_node.exited is None and own_node.pid == pid
    assert eventually(lambda: _works(own_node, 6), SECONDS)


def test_memory_that_reaches_beyond_the_last_address_is_not_attached(node: NodeProcess) -> None:
    """No number that the mover is told holds what would be moved there."""
    agent, memory = shared_agent(), poisoned(2 * LAYOUT.payload_bytes)
    region = agent.register(memory)
    with session(node) as caller, connected(caller) as stream:
        about = REGION.pack(agent.name, 2**64 - 8, region.size, *region.registration)
        stream.send(CALL.pack(Op.ATTACH, 0, 0, 0, 0, 0, 0, 0, len(region.blob)), about, region.blob)
        with pytest.raises(Unavailable):
            assert stream.receive(1)[0] == Attach.KNOWN
            reply, _ = opened(caller, 16)
            whole = (0, LAYOUT.layers, 0, LAYOUT.kv_heads)
            head = CALL.pack(Op.PULL, len(reply.handles[0]), 1, *whole, 0, 0)
            stream.send(head, reply.handles[0], struct.pack("<Q", 8))
            stream.receive(1)
    agent.forget(region)
    assert "Traceback" not in node.log


def test_too_many_words_of_an_agent_are_not_received(node: NodeProcess) -> None:
    with session(node) as caller, connected(caller) as stream:
        stream.send(CALL.pack(Op.ATTACH, 0, 0, 0, 0, 0, 0, 0, UCX_BLOB_BYTES_MAX + 1))
        with pytest.raises(Unavailable):
            stream.receive(1)
    assert eventually(lambda: _works(node, 7), SECONDS)


def test_a_killed_mover_costs_its_moves_and_is_started_again(own_node: NodeProcess) -> None:
    assert eventually(lambda: _works(own_node, 8), SECONDS)
    before = mover_of(own_node)
    before.kill()
    assert eventually(lambda: _works(own_node, 8), SECONDS)
    assert mover_of(own_node).pid != before.pid


@pytest.mark.parametrize("tls", ["posix,sysv,cma,self,tcp", "tcp,self"])
def test_blocks_go_and_come_by_shared_memory_and_by_tcp(tls: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCX_TLS", tls)
        with running(dram="64MiB", options=OFFERED) as started:
            done = subprocess.run([*_command(started), "trip"], cwd=tree.ROOT, timeout=SECONDS)
    assert done.returncode == 0


def test_a_reader_killed_in_the_middle_leaves_no_hold(node: NodeProcess) -> None:
    with session(node) as caller:
        for _ in range(3):
            reader = subprocess.Popen(
                [*_command(node), "loop"], stdout=subprocess.PIPE, cwd=tree.ROOT
            )
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"stored\n"
            reader.send_signal(signal.SIGKILL)
            reader.wait(SECONDS)
            reader.stdout.close()
        eventually(lambda: caller.stats().pins == 0, SECONDS)
        caller.register(LOOPED)
    assert eventually(lambda: _works(node, 9), SECONDS)


def test_connections_that_come_and_go_leave_nothing_behind(node: NodeProcess) -> None:
    assert eventually(lambda: _works(node, 10), SECONDS)
    processes = [psutil.Process(), psutil.Process(node.pid), mover_of(node)]

    def held() -> list[tuple[int, int]]:
        return [(one.num_fds(), one.num_threads()) for one in processes]

    def cycles(count: int) -> None:
        with session(node) as caller:
            for _ in range(count):
                with connected(caller) as stream:
                    UcxLane(stream).close()

    cycles(20)
    fds, before = held(), [one.memory_info().rss for one in processes]
    cycles(200)
    after = [one.memory_info().rss for one in processes]
    print(fds, held(), before, after)
    eventually(lambda: _near(held(), fds), SECONDS)
    assert all(a - b < 24 * MiB for a, b in zip(after, before, strict=True)), (before, after)


def test_a_node_that_does_not_offer_it_is_a_named_error() -> None:
    with running() as started, pytest.raises(ConfigError, match="--transport tcp,ucx"):
        Client.at(started.address, SPEC, transport="ucx", deadline_seconds=20.0)


def test_a_transport_that_there_is_not_names_those_that_there_are(node: NodeProcess) -> None:
    with pytest.raises(Invalid, match="auto, shm, tcp, ucx"):
        Client.at(node.address, SPEC, transport="rdma", deadline_seconds=20.0)


def test_a_node_stops_with_its_mover() -> None:
    with running(options=OFFERED) as started:
        mover = mover_of(started)
        started.kill()
        eventually(lambda: not mover.is_running() or mover.status() == psutil.STATUS_ZOMBIE, 20.0)


def _near(now: list[tuple[int, int]], before: list[tuple[int, int]]) -> bool:
    """Whether there are no more descriptors and threads than a few that come and go."""
    return all(a[0] <= b[0] + 4 and a[1] <= b[1] + 3 for a, b in zip(now, before, strict=True))


def _works(node: NodeProcess, seed: int) -> bool:
    try:
        return trip(node, seed)
    except Unavailable:
        return False


def _command(node: NodeProcess) -> list[str]:
    return [sys.executable, "-m", "tests.transfer.ucx_caller", node.address]
