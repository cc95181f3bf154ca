"""A real node process for clients to talk to: one for the run, or one a test may harm."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvstore.client import Client, KVSpec
from kvstore.wire.v1 import admin_pb2
from tests import tree
from tests.client.kv import spec_of
from tests.client.stored import Stored

READY_SECONDS = 120.0


class Node:
    """`moonpool node` in a directory. It may be killed, stopped and started again."""

    def __init__(
        self, directory: Path, dram: str = "256MiB", slab: str = "8MiB", transport: str = "tcp"
    ) -> None:
        self.directory = directory
        self._arguments = ["--dir", os.fspath(directory), "--dram", dram, "--slab", slab]
        self._arguments += ["--transport", transport]
        self.address = ""

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvstore", "node", *self._arguments],
            stdout=subprocess.PIPE,
            cwd=tree.ROOT,
        )
        ready, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS)
        assert ready, "the node did not start in time"
        assert self._process.stdout is not None
        self.address = json.loads(self._process.stdout.readline())["ready"]

    def signal(self, number: int) -> None:
        psutil.Process(self._process.pid).send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _running(**options: Any) -> Iterator[Node]:
    directory = Path(tempfile.mkdtemp(prefix="mpc", dir="/tmp"))  # short: a socket is made in it
    node = Node(directory, **options)
    try:
        node.start()
        yield node
    finally:
        node.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session", params=["shm", "tcp", "ucx"])
def transport(request: pytest.FixtureRequest) -> str:
    """How the run's clients move bytes. What holds for one way holds for every way."""
    if request.param == "ucx":
        pytest.importorskip("nixl_cu12")
    return str(request.param)


@pytest.fixture
def mapped(transport: str) -> None:
    """For what only callers that map the node's memory can do."""
    if transport != "shm":
        pytest.skip("the memory of another host is not mapped")


@pytest.fixture(scope="session")
def node(transport: str) -> Iterator[Node]:
    """One of its own for each transport: names of blocks begin anew."""
    yield from _running(transport="tcp,ucx" if transport == "ucx" else "tcp")


@pytest.fixture
def own_node() -> Iterator[Node]:
    """One that this test may harm."""
    yield from _running(dram="32MiB", slab="4MiB")


@pytest.fixture
def client_of(node: Node, transport: str) -> Iterator[Callable[..., Client]]:
    """Makes clients of the run's node, closed at the end of the test."""
    made: list[Client] = []

    def make(spec: KVSpec, **options: Any) -> Client:
        options.setdefault("deadline_seconds", 20.0)
        options.setdefault("transport", transport)
        made.append(Client.at(node.address, spec, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def stats_of() -> Callable[[Client], admin_pb2.StatsReply]:
    def ask(client: Client) -> admin_pb2.StatsReply:
        return client.connection.call(lambda link: link.admin.Stats, admin_pb2.StatsRequest())

    return ask


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Waits, for a bounded time, until a condition holds."""

    def wait(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not so within {seconds} s"
            time.sleep(0.01)
        return value

    return wait


@pytest.fixture
def stored(own_node: Node) -> Iterator[Stored]:
    with Client.at(own_node.address, spec_of("d"), deadline_seconds=20.0) as client:
        yield Stored(client)
