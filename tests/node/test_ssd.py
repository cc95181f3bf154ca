"""A node with an SSD tier, as its callers see it: what it acknowledged it has."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.block import Chain
from kvstore.config import NodeConfig, SsdConfig
from kvstore.errors import ConfigError
from kvstore.layout import SlotLayout
from kvstore.limits import MiB
from kvstore.spec import KVSpec
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import (
    CALL_SECONDS,
    LARGE,
    SPEC,
    Caller,
    NodeProcess,
    eventually,
    pairs,
    payload,
    prompt,
    put_parts,
    refused,
    running,
)

BLOCKS = 12  # of 4 MiB: three times what DRAM has room for


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    with running(dram="16MiB", slab="8MiB", ssd="128MiB") as started:
        yield started


def put_durable(caller: Caller, blocks: Chain, spec: KVSpec = LARGE) -> list[int]:
    payloads = [payload(h, spec, n) for h, n in pairs(blocks)]
    parts = put_parts(blocks, payloads, spec, durable=True)
    return list(caller.kv.Put(parts, timeout=CALL_SECONDS).stored)


@contextmanager
def again(node: NodeProcess, **ssd: str) -> Iterator[Caller]:
    """A caller of the node of the same directory, started with these paths."""
    other = NodeProcess(node.directory, dram="16MiB", slab="8MiB", ssd=ssd)
    try:
        yield other.start().caller()
    finally:
        other.close()


def check_bytes(caller: Caller, blocks: Chain, spec: KVSpec = LARGE) -> None:
    outcomes, found = caller.get(blocks, spec)
    assert outcomes == [pb.HIT] * len(blocks)
    assert found == [payload(h, spec, n) for h, n in pairs(blocks)]


def test_a_node_that_is_stopped_writes_what_waits_for_its_ssd_first() -> None:
    blocks = prompt(1, BLOCKS, LARGE)
    with running(dram="128MiB", slab="8MiB", ssd="128MiB") as node:
        caller = node.caller()
        caller.register(LARGE)
        assert caller.put(blocks, spec=LARGE) == [pb.PutReply.STORED] * BLOCKS
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        with again(node, ssd="128MiB") as caller:
            caller.register(LARGE)
            assert caller.match(blocks, LARGE)[0] == BLOCKS


def test_what_dram_has_no_room_for_is_read_from_ssd(node: NodeProcess) -> None:
    caller = node.caller()
    caller.register(LARGE)
    blocks = prompt(1, BLOCKS, LARGE)
    assert put_durable(caller, blocks) == [pb.PutReply.STORED] * BLOCKS
    assert caller.match(blocks, LARGE) == (BLOCKS, pb.HIT)
    check_bytes(caller, blocks)
    counters = caller.counters()
    assert counters["stored_blocks"] == BLOCKS and counters["evicted_blocks"] == 0
    assert counters["promoted_blocks"] >= BLOCKS - 4


@pytest.mark.parametrize("end", [NodeProcess.kill, NodeProcess.close], ids=["killed", "stopped"])
def test_durable_blocks_are_there_when_the_node_starts_again(
    node: NodeProcess, end: Callable[[NodeProcess], None]
) -> None:
    caller = node.caller()
    caller.register(LARGE)
    blocks = prompt(2, BLOCKS, LARGE, last=3)
    put_durable(caller, blocks)
    end(node)
    node.start()
    caller = node.caller()
    assert caller.match(blocks, LARGE) == (BLOCKS, pb.HIT), "no call has named the namespace yet"
    check_bytes(caller, blocks)
    more = prompt(3, BLOCKS, LARGE)
    put_durable(caller, more)
    check_bytes(caller, more)


def test_what_is_sealed_comes_to_ssd_by_itself(node: NodeProcess) -> None:
    caller = node.caller()
    caller.register(LARGE)
    caller.put(prompt(4, 2, LARGE), spec=LARGE)
    eventually(lambda: caller.counters()["stored_blocks"] == 2)


def test_removed_blocks_stay_removed(node: NodeProcess) -> None:
    caller = node.caller()
    caller.register(LARGE)
    blocks = prompt(5, 3, LARGE)
    put_durable(caller, blocks)
    caller.ask("Remove", **caller.about(blocks, LARGE))
    assert caller.match(blocks, LARGE) == (0, pb.REMOVED)
    put_durable(caller, prompt(6, 1, LARGE))  # the next commit says so on the disk
    node.kill()
    node.start()
    assert node.caller().match(blocks, LARGE)[0] == 0


def test_a_full_ssd_evicts_the_coldest(node: NodeProcess) -> None:
    caller = node.caller()
    caller.register(LARGE)
    chains = [prompt(10 + number, 8, LARGE) for number in range(8)]
    for blocks in chains:  # twice what the SSD has room for
        put_durable(caller, blocks)
    check_bytes(caller, chains[-1])
    assert caller.match(chains[0], LARGE)[0] < 8
    assert caller.counters()["evicted_blocks"] > 0


def test_a_flipped_bit_is_a_miss_and_harms_one_block(node: NodeProcess) -> None:
    caller = node.caller()
    caller.register(LARGE)
    blocks = prompt(7, 3, LARGE)
    put_durable(caller, blocks)
    node.kill()
    flip_inside(node.directory / "ssd", payload(blocks.hashes[1], LARGE, blocks.tokens[1]))
    node.start()
    caller = node.caller()
    outcomes, found = caller.get(blocks, LARGE)
    assert outcomes == [pb.HIT, pb.DAMAGED, pb.UNLISTED]
    assert found[0] == payload(blocks.hashes[0], LARGE, blocks.tokens[0])
    put_durable(caller, blocks)
    check_bytes(caller, blocks)


def remove_index(index: Path) -> None:
    shutil.rmtree(index)


def zero_pages(index: Path) -> None:
    """LMDB ends the process that comes upon one of these."""
    with (index / "data.mdb").open("r+b") as file:
        file.seek(2 * 4096)
        file.write(bytes(64 * 4096))


@pytest.mark.parametrize("harm", [remove_index, zero_pages])
def test_without_its_index_a_path_is_served_from_the_heads_of_its_slots(
    node: NodeProcess, harm: Callable[[Path], None]
) -> None:
    caller = node.caller()
    caller.register(SPEC)
    caller.register(LARGE)
    chains = [(prompt(20, BLOCKS, LARGE, last=3), LARGE), (prompt(21, 40), SPEC)]
    for blocks, spec in chains:
        put_durable(caller, blocks, spec)
    node.kill()
    harm(node.directory / "ssd" / "index")
    caller = node.start().caller()
    assert "is made anew from the heads" in node.log
    for blocks, spec in chains:
        check_bytes(caller, blocks, spec)
    node.kill()
    caller = node.start().caller()  # by its index again
    assert node.log.count("is made anew") == 1
    for blocks, spec in chains:
        check_bytes(caller, blocks, spec)


def test_without_its_index_a_flipped_head_costs_one_block(node: NodeProcess) -> None:
    caller = node.caller()
    caller.register(LARGE)
    chains = [prompt(30 + number, 1, LARGE) for number in range(6)]
    for blocks in chains:
        put_durable(caller, blocks)
    node.kill()
    remove_index(node.directory / "ssd" / "index")
    data = payload(chains[2].hashes[0], LARGE)
    flip_inside(node.directory / "ssd", data, SlotLayout.of(LARGE, 0).head_bytes)
    caller = node.start().caller()
    held = [caller.match(blocks, LARGE)[0] for blocks in chains]
    assert held == [1, 1, 0, 1, 1, 1]
    for blocks in chains[:2] + chains[3:]:
        check_bytes(caller, blocks)


def test_without_ssd_a_durable_put_is_refused() -> None:
    with running() as node:
        caller = node.caller()
        caller.register(LARGE)
        refusal = refused(lambda: put_durable(caller, prompt(8, 1, LARGE)))
        assert "start it with --ssd" in refusal.text


def flip_inside(directory: Path, data: bytes, before: int = 0) -> None:
    """Flip one bit of the file that holds the data: in it, or so many bytes before."""
    for file in sorted(directory.glob("blocks-*")):
        at = file.read_bytes().find(data[:4096])
        if at >= 0:
            with file.open("r+b") as handle:
                handle.seek(at - before + 100)
                old = handle.read(1)
                handle.seek(at - before + 100)
                handle.write(bytes([old[0] ^ 1]))
            return
    raise AssertionError("the block is in no file")


def test_paths_may_be_named_in_another_order_left_away_and_named_again() -> None:
    sizes = {"one": "64MiB", "two": "96MiB"}
    with running(dram="16MiB", slab="8MiB", ssd=sizes) as node:
        caller = node.caller()
        caller.register(LARGE)
        chains = [prompt(number, 4, LARGE) for number in range(5)]
        for blocks in chains:  # 80 MiB: more than either path has room for
            put_durable(caller, blocks)
        paths = [(one.path, one.size_bytes, one.retired_files) for one in caller.stats().ssd]
        assert paths == [
            (f"{node.directory}/one", 64 * MiB, 0),
            (f"{node.directory}/two", 96 * MiB, 0),
        ]
        node.kill()
        with again(node, two=sizes["two"], one=sizes["one"]) as caller:
            for blocks in chains:
                check_bytes(caller, blocks)
        with again(node, two=sizes["two"]) as caller:
            left = sum(caller.match(blocks, LARGE)[0] for blocks in chains)
            assert 0 < left < 20
        caller = node.start().caller()
        for blocks in chains:
            check_bytes(caller, blocks)


def test_one_path_twice_is_refused_by_both_names(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "there")
    ssd = tuple(SsdConfig(tmp_path / name, 64 * MiB) for name in ("there", "same"))
    with pytest.raises(ConfigError, match=r"node\.ssd = .*/there and .*/same are one directory"):
        NodeConfig(tmp_path, ssd=ssd)
