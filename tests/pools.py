"""Several real nodes of one host, and conductors that follow them, on one metadata: a file that
they share, or an etcd. What nodes say to one of them can be made to pass through bad proxies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
import psutil

from kvstore.block import Chain, stored_key
from kvstore.cli.stack import Child
from kvstore.core.fingerprints import fingerprints
from kvstore.metadata import Metadata, open_metadata
from kvstore.metadata.protocol import Entry
from kvstore.metadata.records import NodeRecord, TenantRecord
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc, directory_pb2
from tests.faults.proxy import Proxy
from tests.nodes import CALL_SECONDS, PATIENCE_SECONDS, SPEC, NodeProcess, short_directory
from tests.standing_in import StandingIn

T = TypeVar("T")
BESIDE = "127.0.0.2"  # of loopback too: the same ports are free there


class ConductorProcess:
    """`moonpool conductor`, and a caller of it."""

    def __init__(
        self, name: str, directory: Path, options: Sequence[str], listen: str = "127.0.0.1:0"
    ) -> None:
        self._child = Child(name, ["conductor", "--listen", listen, *options], directory)
        self._channel: grpc.Channel | None = None

    def start(self) -> Self:
        self._child.start()
        self._child.wait_ready()
        if self._channel is not None:
            self._channel.close()
        self._channel = open_channel(self._child.address)
        self.stub = conductor_pb2_grpc.ConductorStub(self._channel)
        return self

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def address(self) -> str:
        return self._child.address

    @property
    def log(self) -> str:
        return self._child.log.read_text()

    def match(self, blocks: Chain) -> pb.PoolMatchReply:
        request = pb.PoolMatchRequest(namespace=SPEC.digest, hashes=blocks.hashes)
        return self.stub.Match(request, timeout=CALL_SECONDS)

    def holding(self, blocks: Chain) -> dict[str, tuple[int, int]]:
        """Of each node that is named, how many leading blocks it has, and of those in DRAM."""
        holders = self.match(blocks).holders
        return {one.address: (one.blocks, one.dram_blocks) for one in holders}

    def holders(self, prints: bytes) -> directory_pb2.HoldersReply:
        request = directory_pb2.HoldersRequest(fingerprints=prints)
        return self.stub.Holders(request, timeout=CALL_SECONDS)

    def signal(self, number: int) -> None:
        psutil.Process(self.pid).send_signal(number)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        self._child.reap(time.monotonic() + seconds)
        code = self._child.exited
        assert code is not None
        return code

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._child.stop()
        self._child.reap(time.monotonic() + PATIENCE_SECONDS)


class Nodes:
    """The parts of one pool, each made when it is asked for and gone at the end."""

    def __init__(self, directory: Path, etcd: str = "") -> None:
        """In one etcd, at its URL, or else in a file."""
        self.directory = directory
        self.metadata = etcd or os.fspath(directory / "metadata.db")
        self._shared = ["--etcd" if etcd else "--metadata", self.metadata]
        self._parts: list[NodeProcess | ConductorProcess] = []

    def node(self, name: str, program: str = "", **options: Any) -> NodeProcess:
        """As the module of that name runs it, where one is given."""
        (self.directory / name).mkdir(exist_ok=True)
        options["options"] = [*self._shared, *options.pop("options", ())]
        where = self.directory / name
        made = StandingIn(program, where, **options) if program else NodeProcess(where, **options)
        self._parts.append(made)
        return made.start()

    def node_behind(self, name: str, etcd: str, **options: Any) -> NodeProcess:
        """A node of this pool that reaches its etcd there."""
        (self.directory / name).mkdir(exist_ok=True)
        made = NodeProcess(self.directory / name, options=["--etcd", etcd], **options)
        self._parts.append(made)
        return made.start()

    def conductor(self, name: str = "conductor", listen: str = "127.0.0.1:0") -> ConductorProcess:
        made = ConductorProcess(name, self.directory, self._shared, listen)
        self._parts.append(made)
        return made.start()

    def with_metadata(self, ask: Callable[[Metadata], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            metadata = open_metadata(self.metadata)
            try:
                return await ask(metadata)
            finally:
                await metadata.close()

        return asyncio.run(run())

    def entries(self, prefix: str) -> list[Entry]:
        async def listed(metadata: Metadata) -> list[Entry]:
            return (await metadata.list(prefix))[0]

        return self.with_metadata(listed)

    def record_of(self, node: NodeProcess) -> NodeRecord:
        records = [NodeRecord.parse(one) for one in self.entries(NodeRecord.prefix)]
        return next(one for one in records if one.address == node.address)

    @contextmanager
    def behind(self, node: NodeProcess) -> Iterator[tuple[Proxy, Proxy]]:
        """Other nodes reach this one through two proxies from now on: of calls, and of data."""
        record = self.record_of(node)
        data = node.caller().opened.data_address
        ports = [int(address.rpartition(":")[2]) for address in (node.address, data)]
        calls, moves = (
            Proxy(f"127.0.0.1:{port}", listen=BESIDE, port=port, seed=port) for port in ports
        )
        with calls, moves:
            moved = replace(record, address=f"{BESIDE}:{ports[0]}")
            self.with_metadata(lambda metadata: metadata.put(moved.key(), moved.encode()))
            yield calls, moves

    def prints(self, blocks: Chain) -> bytes:
        """Of the default tenant's blocks, as they travel."""
        secret = bytes.fromhex(TenantRecord.parse(self.entries("tenants/default")[0]).secret)
        keys = [stored_key(secret, SPEC.digest, 0, one) for one in blocks.hashes]
        return fingerprints(keys).tobytes()

    def close(self) -> None:
        for part in self._parts:
            part.close()


@contextmanager
def pool(etcd: str = "") -> Iterator[Nodes]:
    with short_directory() as directory:
        nodes = Nodes(directory, etcd)
        try:
            yield nodes
        finally:
            nodes.close()
