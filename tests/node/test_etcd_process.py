"""Real nodes whose metadata lies in a real etcd: one pool, which serves on when etcd is gone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvstore.config import EtcdConfig
from kvstore.metadata import open_metadata
from kvstore.metadata.records import NodeRecord
from kvstore.rpc.locator import InDirectory
from kvstore.wire.v1 import kv_pb2 as pb
from tests.etcd import EtcdProcess, free_port, need_etcd
from tests.nodes import LARGE, SPEC, NodeProcess, eventually, prompt, refused, short_directory


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    need_etcd()
    started = EtcdProcess(tmp_path / "etcd")
    try:
        yield started.start()
    finally:
        started.kill()


@pytest.fixture
def member(etcd: EtcdProcess) -> Iterator[NodeProcess]:
    """A node of the pool."""
    yield from _member(etcd)


@pytest.fixture
def other(etcd: EtcdProcess) -> Iterator[NodeProcess]:
    """Another node of the pool, as if on another host."""
    yield from _member(etcd)


def _member(etcd: EtcdProcess) -> Iterator[NodeProcess]:
    with short_directory() as directory:
        node = NodeProcess(directory, options=["--etcd", etcd.url, "--cluster", "tests"])
        try:
            yield node.start()
        finally:
            node.close()


def records(etcd: EtcdProcess) -> list[NodeRecord]:
    async def listed() -> list[NodeRecord]:
        metadata = open_metadata(EtcdConfig((etcd.url,), "tests"))
        try:
            entries, _ = await metadata.list(NodeRecord.prefix)
            return [NodeRecord.parse(entry) for entry in entries]
        finally:
            await metadata.close()

    return asyncio.run(listed())


def test_nodes_that_name_one_etcd_know_the_same_namespaces(
    etcd: EtcdProcess, member: NodeProcess, other: NodeProcess
) -> None:
    assert sorted(one.address for one in records(etcd)) == sorted([member.address, other.address])
    assert InDirectory(member.directory).find() == member.address
    assert InDirectory(other.directory).find() == other.address
    assert not (member.directory / "metadata.db").exists()
    member.caller().register()
    assert other.caller().put(prompt(1)) == [pb.PutReply.STORED], "it was registered elsewhere"


def test_a_node_serves_on_while_etcd_is_gone_for_longer_than_its_lease(
    etcd: EtcdProcess, member: NodeProcess
) -> None:
    caller = member.caller()
    caller.register()
    caller.put(prompt(1))
    etcd.kill()
    gone, number = time.monotonic(), 2
    while time.monotonic() < gone + 6.0:
        assert caller.register() == SPEC.digest, "it knows that one"
        assert caller.put(prompt(number)) == [pb.PutReply.STORED]
        assert caller.get(prompt(1))[0] == caller.get(prompt(number))[0] == [pb.HIT]
        assert caller.match(prompt(number))[0] == 1
        number += 1
        time.sleep(0.1)
    found = refused(lambda: caller.register(LARGE))
    assert (found.code, found.kind) == (grpc.StatusCode.UNAVAILABLE, "Unavailable"), found
    assert etcd.url in found.text
    with pytest.raises(grpc.RpcError):
        caller.ask("Match", namespace=LARGE.digest, group=0, hashes=[b"h" * 32], last_tokens=1)
    assert caller.get(prompt(1))[0] == [pb.HIT]
    etcd.start()
    eventually(lambda: [one.address for one in records(etcd)] == [member.address], 20.0)
    eventually(lambda: not refuses(caller.register, LARGE), 20.0)
    assert member.log.count("cannot give its sign of life") == 1
    assert "Traceback" not in member.log


def test_a_node_that_etcd_forgot_says_again_that_it_is_there(
    etcd: EtcdProcess, member: NodeProcess
) -> None:
    caller = member.caller()
    caller.register()
    caller.put(prompt(1))
    etcd.forget()
    eventually(lambda: [one.address for one in records(etcd)] == [member.address], 20.0)
    assert "ended, and is asked for anew" in member.log
    assert caller.get(prompt(1))[0] == [pb.HIT]


def test_a_node_that_was_stopped_for_longer_than_its_lease_is_gone_and_comes_back(
    etcd: EtcdProcess, member: NodeProcess
) -> None:
    member.signal(signal.SIGSTOP)
    eventually(lambda: records(etcd) == [], 20.0)
    member.signal(signal.SIGCONT)
    eventually(lambda: [one.state for one in records(etcd)] == ["serving"], 20.0)


def test_a_node_that_ends_takes_its_record_back_and_ends_without_etcd_too(
    etcd: EtcdProcess, member: NodeProcess, other: NodeProcess
) -> None:
    member.signal(signal.SIGTERM)
    assert member.wait() == 0
    assert [one.address for one in records(etcd)] == [other.address]
    etcd.kill()
    other.signal(signal.SIGTERM)
    assert other.wait(20.0) == 0, other.log[-4_000:]
    assert "Traceback" not in other.log


def test_a_node_whose_etcd_does_not_answer_says_so_and_does_not_start(home: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "kvstore", "node", "--dir", str(home), "--etcd", url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and url in ran.stderr and "Traceback" not in ran.stderr, ran


def test_settings_of_etcd_without_an_etcd_are_refused(home: Path) -> None:
    for options in (["--cluster", "a"], ["--etcd-ca", "ca.pem"]):
        command = [sys.executable, "-m", "kvstore", "node", "--dir", str(home), *options]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 2 and "give --etcd too" in ran.stderr, ran


def test_a_share_is_granted_to_all_nodes_of_the_pool(
    etcd: EtcdProcess, member: NodeProcess, other: NodeProcess, home: Path
) -> None:
    command = [sys.executable, "-m", "kvstore", "share", "--dir", str(home), "default"]
    pool = ["--etcd", etcd.url, "--cluster", "tests"]
    ran = subprocess.run(
        [*command, "--weight", "3", *pool], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran
    for node in (member, other):
        caller = node.caller()
        eventually(lambda asked=caller: [one.weight for one in asked.stats().tenants] == [3.0])
    ran = subprocess.run([*command, "--weight", "3"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "--etcd as the pool" in ran.stderr, ran


def refuses(register: object, spec: object) -> bool:
    try:
        register(spec)  # type: ignore[operator]
    except grpc.RpcError:
        return True
    return False
