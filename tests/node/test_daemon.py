"""A node process from start to end: drained, killed, started again, refused where it cannot run."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.config import LEASE_MS_DEFAULT
from kvstore.errors import Unavailable
from kvstore.metadata import open_metadata
from kvstore.metadata.records import NodeRecord, ShareRecord
from kvstore.rpc.locator import InDirectory
from kvstore.wire.v1 import admin_pb2
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import (
    Caller,
    NodeProcess,
    eventually,
    mapped,
    payload,
    prompt,
    refused,
    short_directory,
)
from tests.unhurried import unhurried

CODE = grpc.StatusCode
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def records(directory: Path) -> list[NodeRecord]:
    async def listed() -> list[NodeRecord]:
        metadata = open_metadata(str(directory / "metadata.db"))
        try:
            entries, _ = await metadata.list(NodeRecord.prefix)
            return [NodeRecord.parse(entry) for entry in entries]
        finally:
            await metadata.close()

    return asyncio.run(listed())


async def granted(directory: Path, record: ShareRecord) -> None:
    metadata = open_metadata(str(directory / "metadata.db"))
    try:
        await metadata.put(record.key(), record.encode())
    finally:
        await metadata.close()


def health(caller: Caller, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(caller.channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def started(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`moonpool node` that is expected to end at once."""
    command = [sys.executable, "-m", "kvstore", "node", "--dir", str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@pytest.fixture
def unhurried_node() -> Iterator[NodeProcess]:
    with unhurried() as started:
        yield started


@pytest.fixture
def writer(unhurried_node: NodeProcess) -> Caller:
    made = unhurried_node.caller()
    made.register()
    return made


def test_sigterm_drains_what_is_open_and_takes_no_more(
    unhurried_node: NodeProcess, writer: Caller
) -> None:
    node, caller = unhurried_node, writer
    sealed, begun = prompt(1), prompt(2)
    caller.put(sealed)
    window = caller.reserve(begun).handles[0]
    assert [one.state for one in records(node.directory)] == ["serving"]
    assert health(caller, "") == health(caller, "moonpool.v1.KV") == SERVING
    node.signal(signal.SIGTERM)
    assert next(caller.stream).HasField("drain")
    assert caller.stats().state == "draining"
    eventually(lambda: health(caller, "") == health(caller, "moonpool.v1.KV") == NOT_SERVING)
    eventually(lambda: [one.state for one in records(node.directory)] == ["draining"])
    for call in (lambda: caller.put(prompt(3)), lambda: caller.reserve(prompt(3))):
        found = refused(call)
        assert (found.code, found.kind) == (CODE.UNAVAILABLE, "Draining"), found
        assert found.retry_after_ms > 0 and "draining" in found.text
    assert caller.get(sealed)[0] == [pb.HIT]
    caller.write(window, payload(begun.hashes[0]))
    opened = caller.ask("Open", **caller.about(sealed)).handles
    assert caller.ask("Seal", handles=[window]).sealed[0] == pb.SealReply.SEALED
    assert caller.get(begun) == ([pb.HIT], [payload(begun.hashes[0])])
    assert node.exited is None, "a reader still holds a pin"
    caller.ask("Close", handles=opened)
    assert node.wait() == 0
    assert records(node.directory) == []
    assert not (node.directory / "node.sock").exists()
    assert "Traceback" not in node.log


# `moonpool`, in which reading shares meets a bug, once.
STUMBLES = """
import sys
from kvstore.cli.main import main
from kvstore.node.grants import Grants

keep, stumbled = Grants.keep, []

async def stumbling(self):
    if not stumbled:
        stumbled.append(True)
        raise RuntimeError("a bug")
    await keep(self)

Grants.keep = stumbling
sys.exit(main(sys.argv[1:]))
"""


def test_what_a_node_does_by_itself_goes_on_after_a_bug_and_is_counted(tmp_path: Path) -> None:
    with short_directory() as home:
        command = [sys.executable, "-c", STUMBLES, "node", "--dir", str(home)]
        command += ["--listen", "127.0.0.1:0", "--dram", "16MiB", "--slab", "8MiB"]
        with (tmp_path / "log").open("w") as log:
            node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert node.stdout is not None
        try:
            caller = Caller(json.loads(node.stdout.readline())["ready"])
            eventually(lambda: caller.counters()["task_failures"] == 1)
            asyncio.run(granted(home, ShareRecord("default", weight=7.0, bytes_max=0)))
            eventually(lambda: [one.weight for one in caller.stats().tenants] == [7.0])
            caller.close()
        finally:
            node.terminate()
            node.communicate(timeout=30)
    assert node.returncode == 0
    assert "reading shares ended in a way that nobody foresaw" in (tmp_path / "log").read_text()


# `moonpool` on a disk that answers no sync any more.
HANGS = """
import sys
import threading
from kvstore.cli.main import main
from kvstore.disk.volumes import Volumes

Volumes.sync = lambda *given: threading.Event().wait()
sys.exit(main(sys.argv[1:]))
"""


def test_a_node_whose_disk_hangs_ends_all_the_same() -> None:
    with short_directory() as home:
        command = [sys.executable, "-c", HANGS, "node", "--dir", str(home)]
        command += ["--listen", "127.0.0.1:0", "--dram", "16MiB", "--slab", "8MiB"]
        command += ["--ssd-buffered", "--ssd", f"{home / 'ssd'}:64MiB"]
        with (home / "log").open("w") as log:
            node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert node.stdout is not None
        try:
            caller = Caller(json.loads(node.stdout.readline())["ready"])
            caller.register()
            caller.put(prompt(1))
            caller.close()
            node.terminate()
            assert node.wait(60) == 1
        finally:
            node.kill()
            node.communicate()
        assert "stopped while a disk does not return" in (home / "log").read_text()
        assert records(home) == [], "it has taken its leave"


def test_a_second_sigterm_ends_the_node_at_once(
    unhurried_node: NodeProcess, writer: Caller
) -> None:
    node = unhurried_node
    writer.reserve(prompt(1))
    node.signal(signal.SIGTERM)
    assert next(writer.stream).HasField("drain")
    node.signal(signal.SIGTERM)
    assert node.wait(20.0) == 0, "the open window would have had 50 seconds"
    assert records(node.directory) == [] and "1 windows" in node.log


def test_an_operator_drains_a_node_as_sigterm_does(node: NodeProcess, caller: Caller) -> None:
    caller.admin.Drain(admin_pb2.DrainRequest())
    assert node.wait() == 0
    with pytest.raises(Unavailable, match="no node serves"):
        InDirectory(node.directory).find()


def test_the_signal_that_follows_a_drain_does_not_cut_it_short(
    unhurried_node: NodeProcess, writer: Caller
) -> None:
    """systemd and Kubernetes send it as soon as `moonpool drain` has ended."""
    node, caller = unhurried_node, writer
    begun = prompt(1)
    window = caller.reserve(begun).handles[0]
    caller.admin.Drain(admin_pb2.DrainRequest())
    node.signal(signal.SIGTERM)
    time.sleep(0.5)  # in which a node that hurries is gone
    caller.write(window, payload(begun.hashes[0]))
    assert caller.ask("Seal", handles=[window]).sealed[0] == pb.SealReply.SEALED
    assert node.wait() == 0
    assert "stopped with" not in node.log


def test_a_killed_node_starts_again_at_once_in_its_directory(
    node: NodeProcess, caller: Caller
) -> None:
    blocks, old = prompt(1), caller.opened
    caller.put(blocks)
    window = caller.reserve(prompt(2)).handles[0]
    with mapped(caller):
        node.kill()
        assert (node.directory / "node.sock").exists(), "a kill leaves the socket's file"
        assert len(records(node.directory)) == 1, "and the lease"
        with pytest.raises(Unavailable, match="no node serves"):
            InDirectory(node.directory).find()
        node.start()
        again = node.caller()
    assert (again.opened.node_id, again.opened.epoch) == (old.node_id, old.epoch + 1)
    assert InDirectory(node.directory).find() == node.address
    assert again.match(blocks) == (0, pb.ABSENT), "the namespace is known, the block is gone"
    assert again.put(blocks) == [pb.PutReply.STORED]
    with mapped(again):
        assert again.get(blocks)[0] == [pb.HIT]
    found = refused(lambda: again.ask("Seal", session=old.session, handles=[window]))
    assert found.kind == "SessionEnded"
    found = refused(lambda: again.ask("Seal", handles=[window]))
    assert found.kind == "NotYours" and "since it started" in found.text
    # The old lease ends meanwhile, and must not take the new record with it.
    time.sleep(1.5 * LEASE_MS_DEFAULT / 1e3)
    eventually(lambda: records(node.directory))  # one that stood still is away for a moment
    assert "had been deleted" not in node.log


def test_a_node_that_was_stopped_for_longer_than_its_lease_says_it_is_back(
    node: NodeProcess,
) -> None:
    node.signal(signal.SIGSTOP)
    eventually(lambda: records(node.directory) == [])
    node.signal(signal.SIGCONT)
    eventually(lambda: [one.state for one in records(node.directory)] == ["serving"])


def test_two_nodes_cannot_share_a_directory(node: NodeProcess, caller: Caller) -> None:
    second = started(node.directory)
    assert second.returncode == 2
    assert str(node.directory) in second.stderr and "another node runs there" in second.stderr
    caller.put(prompt(1))
    with mapped(caller):
        assert caller.get(prompt(1))[0] == [pb.HIT], "the first was not disturbed"


def test_a_node_does_without_the_compiler_that_its_callers_use(node: NodeProcess) -> None:
    maps = Path(f"/proc/{node.pid}/maps").read_text()
    assert "grpc" in maps
    assert "llvmlite" not in maps and "torch" not in maps, "100 MiB that a node has no use for"


def test_a_shell_that_allows_few_files_keeps_no_disk_from_it(home: Path) -> None:
    """Each disk has some open, one for each GiB."""
    disks = [f"--ssd={home / 'ssd' / str(number)}:64KiB" for number in range(30)]
    command = [sys.executable, "-m", "kvstore", "node", "--dir", str(home), "--ssd-buffered"]
    few = ["sh", "-c", 'ulimit -Sn 64 && exec "$@"', "sh"]
    with subprocess.Popen(
        [*few, *command, "--dram=1MiB", "--slab=64KiB", *disks],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as node:
        assert node.stdout is not None and node.stderr is not None
        ready = node.stdout.readline()
        node.terminate()
        assert b"ready" in ready, node.stderr.read().decode()


def test_an_address_that_others_can_reach_is_refused(home: Path) -> None:
    for address in ("0.0.0.0:0", "192.0.2.1:7410", "[::]:0", ":7410", "127.0.0.1", "unix:/x"):
        found = started(home, "--listen", address)
        assert found.returncode == 2 and address in found.stderr, found
        assert "127.0.0.1" in found.stderr, "it says what would be right"


def test_a_port_in_use_is_named(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = started(home, "--listen", address, "--dram", "32MiB")
    words = found.stderr.splitlines()[-1]  # gRPC has its own before it
    assert found.returncode == 2 and f"cannot listen on {address}" in words, found
    assert "Traceback" not in found.stderr


def test_a_directory_too_long_for_a_socket_is_named(home: Path) -> None:
    long = home / ("d" * 120)
    found = started(long)
    assert found.returncode == 2 and str(long) in found.stderr and "107 bytes" in found.stderr
    assert not long.exists()


def test_wrong_sizes_are_named_with_what_would_be_right(home: Path) -> None:
    for options, words in (
        (("--dram", "8GB"), ("8GB", "8GiB")),
        (("--slab", "5000"), ("5000", "4KiB")),
        (("--dram", "1MiB"), ("--dram 1MiB", "at least --slab, 32MiB")),
        (("--dram", "9999TiB"), ("memory",)),
    ):
        found = started(home, *options)
        assert found.returncode == 2 and all(word in found.stderr for word in words), found
