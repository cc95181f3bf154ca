"""Ways to send a node more than it should hold. Each runs in threads until its time is over."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import grpc

from kvstore.limits import HASH_BYTES, RPC_KEYS_MAX, RPC_MESSAGE_BYTES_MAX
from kvstore.rpc.channel import open_channel
from kvstore.spec import KVGroup, KVSpec
from kvstore.wire.v1 import kv_pb2 as pb
from kvstore.wire.v1 import kv_pb2_grpc
from tests.nodes import LARGE, SPEC, Caller, NodeProcess, payload, prompt, put_parts

STORED, STORED_LARGE = prompt(1), prompt(2, 1, LARGE)  # what the reading floods ask for
OPEN_MAX = 8  # calls of one client at once


class Flood:
    """A node, and how long it is to be flooded."""

    def __init__(self, node: NodeProcess, seconds: float) -> None:
        self.node, self.ends = node, time.monotonic() + seconds
        self._threads: list[threading.Thread] = []

    @property
    def on(self) -> bool:
        return time.monotonic() < self.ends

    def start(self, clients: int, flood: Callable[[Flood, int], None]) -> None:
        for number in range(clients):
            thread = threading.Thread(target=flood, args=(self, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a client of the flood hangs"


def largest_messages(flood: Flood, number: int) -> None:
    """Unary calls as large as a message may be, and with as many keys."""
    channel = open_channel(flood.node.address)
    kv = kv_pb2_grpc.KVStub(channel)
    large = pb.MatchRequest(namespace=bytes(RPC_MESSAGE_BYTES_MAX - 64))
    keys = pb.MatchRequest(namespace=SPEC.digest, hashes=[bytes(HASH_BYTES)] * RPC_KEYS_MAX)
    while flood.on:
        calls = [kv.Match.future(large if i % 2 else keys, timeout=2) for i in range(OPEN_MAX)]
        for call in calls:
            call.exception()
    channel.close()


def stalled_puts(flood: Flood, number: int) -> None:
    """Puts of large blocks that stop half-way."""
    channel = open_channel(flood.node.address)
    kv = kv_pb2_grpc.KVStub(channel)

    def half(blocks: Any) -> Iterator[pb.PutRequest]:
        parts = put_parts(blocks, [payload(blocks.hashes[0], LARGE)], LARGE)
        yield from (next(parts) for _ in range(3))
        while flood.on:
            time.sleep(0.05)

    def call(turn: int) -> Any:
        return kv.Put.future(half(prompt(1_000 * (number + 1) + turn, 1, LARGE)))

    _few_at_once(flood, call)
    channel.close()


def stalled_gets(flood: Flood, number: int) -> None:
    """Gets of large blocks whose caller takes nothing."""
    channel = open_channel(flood.node.address)
    kv = kv_pb2_grpc.KVStub(channel)
    hashes = list(STORED_LARGE.hashes) * 100
    _few_at_once(flood, lambda _: kv.Get(pb.GetRequest(namespace=LARGE.digest, hashes=hashes)))
    channel.close()


def sessions(flood: Flood, number: int) -> None:
    """Sessions begun by the hundred, and left open."""
    channel = open_channel(flood.node.address)
    kv = kv_pb2_grpc.KVStub(channel)
    begun = []
    while flood.on and len(begun) < 500:
        begun.append(kv.Session(pb.SessionRequest(label="x" * 1_000)))
        time.sleep(0.01)
    while flood.on:
        time.sleep(0.1)
    for one in begun:
        one.cancel()
    channel.close()


def pins(flood: Flood, number: int) -> None:
    """The same block pinned again and again, for as long as can be."""
    while flood.on:
        # It is refused a session, then pins.
        with suppress(grpc.RpcError), closing(Caller(flood.node.address)) as caller:
            hashes = list(STORED.hashes) * RPC_KEYS_MAX
            while flood.on:
                caller.ask("Pin", namespace=SPEC.digest, hashes=hashes, pin_ms=600_000)
        time.sleep(0.05)


def specs(flood: Flood, number: int) -> None:
    """Namespaces with long specs."""
    channel, dice = open_channel(flood.node.address), random.Random(number)
    kv = kv_pb2_grpc.KVStub(channel)
    while flood.on:
        layers = [tuple(dice.sample(range(10**6, 10**7), 4_000)) for _ in range(8)]
        spec = KVSpec("m", "r", "int8", tuple(KVGroup(some, 1, 1, 1) for some in layers))
        with suppress(grpc.RpcError):
            kv.Register(pb.RegisterRequest(spec=spec.canonical()), timeout=5)
        time.sleep(0.1)
    channel.close()


def garbage(flood: Flood, number: int) -> None:
    """Bytes of no protocol, to both sockets; connections are left open."""
    host, port = flood.node.address.split(":")
    dice, opened = random.Random(number), []
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    while flood.on:
        with suppress(OSError):
            peer = socket.create_connection((host, int(port)), timeout=0.5)
            opened.append(peer)
            peer.sendall((greeting if dice.random() < 0.5 else b"") + dice.randbytes(50_000))
        with suppress(OSError):
            mapper = socket.socket(socket.AF_UNIX)
            opened.append(mapper)
            mapper.settimeout(0.5)
            mapper.connect(os.fspath(flood.node.directory / "node.sock"))
            mapper.sendall(dice.randbytes(dice.choice([1, 16, 10_000])))
        while len(opened) > 100:
            opened.pop(0).close()
        time.sleep(0.005)
    for one in opened:
        one.close()


def _few_at_once(flood: Flood, begin: Callable[[int], Any]) -> None:
    calls: list[Any] = []
    turn = 0
    while flood.on:
        calls.append(begin(turn))
        turn += 1
        if len(calls) > OPEN_MAX:
            calls.pop(0).cancel()
        time.sleep(0.2)
    for call in calls:
        call.cancel()
