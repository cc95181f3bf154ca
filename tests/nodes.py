"""Real node processes for tests, raw callers of their services, and blocks to give them.

A folder's conftest.py imports the fixtures it wants. Nothing here outlives its test, and every wait
has a deadline.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import psutil
import pytest

from kvstore.block import Chain, chain
from kvstore.cli.stack import Child
from kvstore.config import OPEN, Credentials, TlsConfig
from kvstore.layout import SlotLayout
from kvstore.memory.arena import HELLO, Arena
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import ERROR_KEY, RETRY_KEY
from kvstore.spec import KVGroup, KVSpec
from kvstore.wire.v1 import admin_pb2, admin_pb2_grpc, kv_pb2_grpc
from kvstore.wire.v1 import kv_pb2 as pb

CALL_SECONDS = 20.0
PATIENCE_SECONDS = 30.0  # far more than anything waited for takes: it may wait for a CPU

# 2 layers x 2 heads x 4 tokens: a strip of 128 bytes, a block of 512, a slot of 8 KiB.
SPEC = KVSpec("tiny", "r1", "float16", (KVGroup((0, 1), kv_heads=2, head_dim=8, block_tokens=4),))
LAYOUT = SlotLayout.of(SPEC, 0)
# One strip of 2 MiB, a block of 4 MiB: payloads that take several messages.
LARGE = KVSpec(
    "large", "r1", "float32", (KVGroup((0, 1), kv_heads=1, head_dim=1_024, block_tokens=256),)
)


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true value of `condition`, asked again and again until the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.01)


class NodeProcess:
    """`moonpool node` in a directory of its own; `ssd` is a size, or sizes by name."""

    def __init__(
        self,
        directory: Path,
        *,
        dram: str = "16MiB",
        slab: str = "8MiB",
        listen: str = "127.0.0.1:0",
        ssd: str | dict[str, str] | None = None,
        ssd_at: Path | None = None,  # through the page cache; else below the node's own directory
        scrub_rate: str = "",
        options: Sequence[str] = (),  # any others, as the command takes them
        tls: TlsConfig | None = None,
    ) -> None:
        self.directory = directory
        where = ["--dir", os.fspath(directory), "--listen", listen]
        arguments = ["node", *where, "--dram", dram, "--slab", slab]
        for name, size in ({"ssd": ssd} if isinstance(ssd, str) else ssd).items() if ssd else ():
            arguments += ["--ssd", f"{ssd_at or directory / name}:{size}"]
        if ssd_at is not None:
            arguments += ["--ssd-buffered"]
        if scrub_rate:
            arguments += ["--scrub-rate", scrub_rate]
        arguments += options
        if tls is not None:
            arguments += ["--tls-ca", os.fspath(tls.ca), "--tls-cert", os.fspath(tls.cert)]
            arguments += ["--tls-key", os.fspath(tls.key)]
        self._child = Child("node", arguments, directory)
        self._callers: list[Caller] = []

    def start(self) -> Self:
        self._child.start()
        self._child.wait_ready()
        return self

    @property
    def address(self) -> str:
        return self._child.address

    @property
    def metrics(self) -> str:
        """Where they are, of one that was started with `--metrics`."""
        return self._child.metrics

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exited(self) -> int | None:
        return self._child.exited

    @property
    def log(self) -> str:
        return self._child.log.read_text()

    def signal(self, number: int) -> None:
        psutil.Process(self.pid).send_signal(number)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the process to end by itself; its exit code."""
        return int(eventually(lambda: self.exited is not None and [self.exited], seconds)[0])

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def caller(self, label: str = "test", credentials: Credentials = OPEN) -> Caller:
        made = Caller(self.address, label, credentials)
        self._callers.append(made)
        return made

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        if self.exited is None:
            self.signal(signal.SIGCONT)
            self._child.stop()
        self._child.reap(time.monotonic() + PATIENCE_SECONDS)


class Caller:
    """A channel to a node, its stubs, and a session where one is begun."""

    def __init__(self, address: str, label: str = "test", credentials: Credentials = OPEN) -> None:
        self.address = address
        self.channel = open_channel(address, credentials)
        self.kv = kv_pb2_grpc.KVStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)
        self.stream = self.kv.Session(pb.SessionRequest(label=label))
        self.opened: pb.SessionEvent.Opened = next(self.stream).opened
        self.session: bytes = self.opened.session

    def close(self) -> None:
        self.stream.cancel()
        self.channel.close()

    def ask(self, method: str, **fields: Any) -> Any:
        """One call of the KV service, with the session where the request has one."""
        kind = getattr(pb, f"{method}Request")
        if "session" in kind.DESCRIPTOR.fields_by_name:
            fields.setdefault("session", self.session)
        return getattr(self.kv, method)(kind(**fields), timeout=CALL_SECONDS)

    def about(self, blocks: Chain, spec: KVSpec = SPEC) -> dict[str, Any]:
        return {"namespace": spec.digest, "group": 0, "hashes": blocks.hashes}

    def stats(self) -> admin_pb2.StatsReply:
        return self.admin.Stats(admin_pb2.StatsRequest(), timeout=CALL_SECONDS)

    def counters(self) -> dict[str, int]:
        return dict(self.stats().counters)

    def register(self, spec: KVSpec = SPEC) -> bytes:
        return self.ask("Register", spec=spec.canonical()).namespace

    def put(self, blocks: Chain, payloads: Sequence[bytes] = (), spec: KVSpec = SPEC) -> list[int]:
        """Store whole blocks as bytes."""
        payloads = payloads or [payload(h, spec, n) for h, n in pairs(blocks)]
        return list(self.kv.Put(put_parts(blocks, payloads, spec), timeout=CALL_SECONDS).stored)

    def get(self, blocks: Chain, spec: KVSpec = SPEC) -> tuple[list[int], list[bytes]]:
        """The outcome of each block, and the bytes of each (empty on a miss)."""
        outcomes: list[int] = []
        found: list[bytes] = []
        for part in self.kv.Get(pb.GetRequest(**self.about(blocks, spec)), timeout=CALL_SECONDS):
            if part.HasField("block"):
                assert part.block.index == len(outcomes)
                outcomes.append(part.block.outcome)
                found.append(b"")
            else:
                found[-1] += part.data
        return outcomes, found

    def match(self, blocks: Chain, spec: KVSpec = SPEC) -> tuple[int, int]:
        last = blocks.tokens[-1]
        reply = self.ask("Match", **self.about(blocks, spec), last_tokens=last)
        return reply.blocks, reply.reason

    def reserve(self, blocks: Chain, spec: KVSpec = SPEC, **options: Any) -> pb.ReserveReply:
        last = blocks.tokens[-1]
        return self.ask("Reserve", **self.about(blocks, spec), last_tokens=last, **options)

    def write(
        self, handle: bytes, data: bytes, fragment: pb.Fragment | None = None, **options: Any
    ) -> None:
        """Move bytes into a window, in messages of at most 1 MiB."""
        session = options.pop("session", self.session)
        options.setdefault("payload_bytes", len(data))
        target = pb.WriteRequest.Target(
            session=session, handle=handle, fragment=fragment, **options
        )
        parts = [pb.WriteRequest(target=target)]
        parts += [pb.WriteRequest(data=piece) for piece in pieces(data)]
        self.kv.Write(iter(parts), timeout=CALL_SECONDS)

    def read(self, handle: bytes, fragment: pb.Fragment | None = None) -> bytes:
        request = pb.ReadRequest(session=self.session, handle=handle, fragment=fragment)
        return b"".join(part.data for part in self.kv.Read(request, timeout=CALL_SECONDS))


class Refusal:
    """How a call failed: code, class, message."""

    def __init__(self, error: grpc.RpcError) -> None:
        trailers = dict(error.trailing_metadata() or ())
        self.code: grpc.StatusCode = error.code()
        self.kind = str(trailers.get(ERROR_KEY, ""))
        self.retry_after_ms = int(trailers.get(RETRY_KEY, 0))
        self.text = str(error.details())

    def __repr__(self) -> str:
        return f"{self.code.name} {self.kind!r} {self.text!r}"


def refused(call: Callable[[], Any]) -> Refusal:
    """How the node refuses a call; fails if it does not."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return Refusal(caught.value)


def prompt(number: int, blocks: int = 1, spec: KVSpec = SPEC, last: int = 0) -> Chain:
    """The chain of one made-up prompt; prompts of different numbers share no block."""
    size = spec.groups[0].block_tokens
    tokens = [number, *range(blocks * size - 1)]
    return chain(spec.digest, 0, tokens[: len(tokens) - (size - last if last else 0)], size)


def pairs(blocks: Chain) -> list[tuple[bytes, int]]:
    return list(zip(blocks.hashes, blocks.tokens, strict=True))


def payload(block_hash: bytes, spec: KVSpec = SPEC, tokens: int = 0) -> bytes:
    """Bytes that stand for a block's KV, different for every hash."""
    layout = SlotLayout.of(spec, 0)
    size = layout.block_bytes(tokens or layout.block_tokens)
    return (block_hash * -(-size // len(block_hash)))[:size]


def pieces(data: bytes, size: int = 1 << 20) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def put_parts(
    blocks: Chain, payloads: Sequence[bytes], spec: KVSpec = SPEC, **header: Any
) -> Iterator[pb.PutRequest]:
    """The messages of a Put; `header` says something else in each PutBlock."""
    for i, ((block_hash, tokens), data) in enumerate(zip(pairs(blocks), payloads, strict=True)):
        fields = {
            "namespace": spec.digest,
            "hash": block_hash,
            "parent": blocks.parent(i),
            "tokens": tokens,
            "payload_bytes": len(data),
        }
        yield pb.PutRequest(block=pb.PutBlock(**{**fields, **header}))
        yield from (pb.PutRequest(data=piece) for piece in pieces(data))


@contextmanager
def mapped(caller: Caller) -> Iterator[Arena]:
    """The node's arena, mapped here for reading and writing through the caller's session."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(CALL_SECONDS)
        peer.connect(caller.opened.shm_socket)
        peer.sendall(caller.opened.shm_token)
        _, descriptors, _, _ = socket.recv_fds(peer, HELLO.size, 1)
        both = mmap.PROT_READ | mmap.PROT_WRITE
        sizes = (caller.opened.arena_bytes, both, caller.opened.hbm_bytes)
        arena = Arena.map(descriptors[0], *sizes)
        try:
            yield arena
        finally:
            assert arena.close(), "a view of the arena is still in use"


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a socket in it."""
    path = Path(tempfile.mkdtemp(prefix="mp-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def running(**options: Any) -> Iterator[NodeProcess]:
    """A node in a directory of its own, for as long as the block lasts."""
    with short_directory() as directory:
        node = NodeProcess(directory, **options)
        try:
            yield node.start()
        finally:
            node.close()


@pytest.fixture
def home() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    """A node that this test may kill."""
    with running() as started:
        yield started


@pytest.fixture
def caller(node: NodeProcess) -> Caller:
    made = node.caller()
    made.register()
    return made


@pytest.fixture(scope="module")
def shared_node() -> Iterator[NodeProcess]:
    """A node that all tests of a module use; each takes prompts of its own."""
    with running(dram="64MiB", slab="8MiB") as started:
        yield started


@pytest.fixture
def shared(shared_node: NodeProcess) -> Iterator[Caller]:
    """A session at the shared node, with both namespaces registered."""
    made = Caller(shared_node.address)
    made.register(SPEC)
    made.register(LARGE)
    yield made
    made.close()
