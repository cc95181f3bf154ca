"""`moonpool doctor` where several nodes are one pool: what it finds of each, and what each
says of the others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.cli.main import main
from kvstore.wire.v1 import kv_pb2 as pb
from tests.cli.test_doctor import Doctor, doctor
from tests.etcd import EtcdProcess, need_etcd
from tests.faults.proxy import Proxy
from tests.nodes import Caller, NodeProcess, eventually, node, prompt
from tests.pools import BESIDE, pool

__all__ = ["doctor", "node"]

numbers = itertools.count(41_000_000)


def fetched(reader: Caller, holder: Caller) -> None:
    blocks = prompt(next(numbers), 2)
    for caller in (holder, reader):
        caller.register()
    holder.put(blocks)
    assert eventually(lambda: reader.get(blocks)[0] == [pb.HIT] * 2, 20)


def test_every_node_of_a_pool_in_etcd_is_looked_at_and_says_what_it_found_of_the_others(
    tmp_path: Path, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    need_etcd()
    etcd = EtcdProcess(tmp_path / "etcd").start()
    try:
        with pool(etcd.url) as nodes:
            first, second = nodes.node("a"), nodes.node("b")
            reader = second.caller()
            fetched(reader, first.caller())
            eventually(lambda: reader.stats().contacts, 20)
            where = ["--dir", str(first.directory), "--etcd", etcd.url]
            assert doctor.asked(*where) == 0 and not doctor.said["warnings"]
            assert list(doctor.nodes) == [first.address, second.address], "this host's first"
            assert all(one["transports"].keys() == {"tcp", "shm"} for one in doctor.said["nodes"])
            (contact,) = doctor.nodes[second.address]["contacts"]
            assert contact["address"] == first.address
            assert contact["transports"]["tcp"]["there_bytes_per_second"] > 0
            assert main(["doctor", *where]) == 0
            assert f"  to {first.address}, " in capsys.readouterr().out
            assert main(["stat", "--node", second.address]) == 0
            assert f"peer      {first.address}: tcp " in capsys.readouterr().out

            assert doctor.asked("--dir", tmp_path, "--etcd", etcd.url) == 0, "a host of no node"
            assert len(doctor.nodes) == 2 and "no node of this host" in doctor.said["warnings"][0]
            record = nodes.record_of(second)
            second.kill()
            # As while its lease is not over, however soon that is.
            nodes.with_metadata(lambda metadata: metadata.put(record.key(), record.encode()))
            assert doctor.asked(*where) == 1
            assert doctor.nodes[first.address]["errors"] == []
            assert "nothing listens" in doctor.nodes[second.address]["errors"][0]
            etcd.kill()
            assert doctor.asked(*where) == 1
            assert doctor.only["errors"] == [], "the node serves on"
            assert f"--etcd = {etcd.url}" in doctor.said["errors"][0]
    finally:
        etcd.stop()


def test_a_cluster_of_etcd_in_which_no_node_runs_is_an_error_that_names_it(
    tmp_path: Path, doctor: Doctor
) -> None:
    need_etcd()
    etcd = EtcdProcess(tmp_path / "etcd").start()
    try:
        asked = ["--dir", tmp_path / "none", "--etcd", etcd.url]
        for cluster, option in (("default", []), ("typo", ["--cluster", "typo"])):
            assert doctor.asked(*asked, *option) == 1
            (error,) = doctor.said["errors"]
            assert error.startswith(f"no node runs in cluster {cluster!r} of {etcd.url}")
            assert "--cluster" in error and "no node of this host" in doctor.said["warnings"][0]
    finally:
        etcd.stop()


def test_a_node_of_another_pool_than_was_named_is_an_error(
    node: NodeProcess, tmp_path: Path, doctor: Doctor
) -> None:
    with pool() as nodes:
        other = nodes.node("a")
        assert doctor.asked("--dir", node.directory, "--metadata", nodes.metadata) == 1
        assert set(doctor.nodes) == {node.address, other.address}
        assert "not in the pool that was named" in doctor.said["errors"][0]


def test_a_node_whose_record_is_bad_is_an_error_and_the_others_are_looked_at(
    doctor: Doctor,
) -> None:
    with pool() as nodes:
        first = nodes.node("a")
        nodes.with_metadata(lambda metadata: metadata.put("nodes/bad", b"garbage"))
        assert doctor.asked("--dir", first.directory, "--metadata", nodes.metadata) == 1
        assert list(doctor.nodes) == [first.address] and not doctor.only["errors"]
        (error,) = doctor.said["errors"]
        assert "a node was not looked at" in error and "nodes/bad: not JSON" in error


@pytest.mark.parametrize("other", ["0", "z"])  # listed before and behind the one that answers
def test_nodes_of_two_hosts_that_announce_one_address_are_an_error(
    other: str, doctor: Doctor
) -> None:
    with pool() as nodes:
        record = replace(nodes.record_of(first := nodes.node("a")), node_id=other)
        nodes.with_metadata(lambda metadata: metadata.put(record.key(), record.encode()))
        assert doctor.asked("--dir", first.directory, "--metadata", nodes.metadata) == 1
        (error,) = doctor.said["errors"]
        assert f"both announce {first.address}: give each" in error and other in error


def test_a_node_that_another_cannot_take_blocks_from_is_an_error_of_that_one(
    doctor: Doctor,
) -> None:
    with pool() as nodes:
        first, second = nodes.node("a"), nodes.node("b")
        record = nodes.record_of(first)
        port = int(first.address.rpartition(":")[2])
        # Its calls can be reached at the other address, and its data port cannot.
        with Proxy(first.address, listen=BESIDE, port=port):
            moved = replace(record, address=f"{BESIDE}:{port}")
            nodes.with_metadata(lambda metadata: metadata.put(moved.key(), moved.encode()))
            holder, reader, blocks = first.caller(), second.caller(), prompt(next(numbers))
            for caller in (holder, reader):
                caller.register()
            holder.put(blocks)

            def complained() -> bool:
                reader.get(blocks)
                return bool(reader.stats().contacts)

            eventually(complained, 20)
            assert doctor.asked("--dir", second.directory, "--metadata", nodes.metadata) == 1
            (error,) = doctor.nodes[second.address]["errors"]
            assert f"from there to the node at {moved.address}: tcp does not work" in error
            assert doctor.nodes[moved.address]["errors"] == []
            first.kill()
            nodes.with_metadata(lambda metadata: metadata.delete(moved.key()))
            assert doctor.asked("--dir", second.directory, "--metadata", nodes.metadata) == 0
            assert len(doctor.only["contacts"]) == 1, "what it found of one that is gone is told"


def test_without_the_pools_name_it_looks_at_this_host_alone_and_says_so(
    tmp_path: Path, doctor: Doctor
) -> None:
    with pool() as nodes:
        first = nodes.node("a")
        nodes.node("b")
        assert doctor.asked("--dir", first.directory) == 0
        assert doctor.only["address"] == first.address
        assert "give --etcd" in doctor.said["warnings"][0]
