"""Requests to engines on a real pool: what becomes of one, and what the pool holds afterwards."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field

import numpy as np

from kvstore.cli.stack import Stack
from kvstore.client import DENSE, Client
from kvstore.engine.core import FinishEvent, TokenEvent
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Request
from kvstore.engine.worker import Failed, Job, Started, Worker
from kvstore.layout import IDENTITY_OFFSET
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import admin_pb2, admin_pb2_grpc
from tests.nodes import eventually

SECONDS = 60.0
NEW = 12


@dataclass
class Run:
    """One request's events as they come."""

    use: PoolUse
    events: queue.SimpleQueue[object] = field(default_factory=queue.SimpleQueue)
    tokens: list[int] = field(default_factory=list)
    started: Started | None = None
    job: Job | None = None

    def hand_off(self) -> tuple[bytes, ...]:
        event = self.events.get(timeout=SECONDS)
        assert isinstance(event, tuple), event
        return event

    def finish(self) -> list[int]:
        while True:
            event = self.events.get(timeout=SECONDS)
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Started):
                self.started = event
            elif isinstance(event, TokenEvent):
                self.tokens.append(event.token)
            elif isinstance(event, FinishEvent):
                return self.tokens


def ask(
    worker: Worker,
    name: str,
    tokens: list[int],
    new: int = NEW,
    hand_offs: tuple[bytes, ...] | None = None,
) -> Run:
    """Submit a request; with one new token it is a prefill, whose hand-off comes first."""
    run = Run(PoolUse(hand_offs=hand_offs))
    if hand_offs is None and new == 1:
        run.use.reserved = run.events.put
    request = Request(name, tuple(tokens), new, ignore_eos=True)
    run.job = Job(request, run.use, run.events.put)
    worker.submit(run.job)
    return run


def leave(worker: Worker, run: Run) -> None:
    """Its caller hangs up."""
    assert run.job is not None
    worker.cancel(run.job)


def check(node: Stack) -> None:
    """Nothing is held once everybody has finished."""
    with open_channel(node.addresses["node"]) as channel:
        ask, request = admin_pb2_grpc.AdminStub(channel).Stats, admin_pb2.StatsRequest()
        eventually(lambda: ask(request, timeout=SECONDS).windows == 0)


def counters(node: Stack) -> dict[str, int]:
    """What the node has counted so far."""
    with open_channel(node.addresses["node"]) as channel:
        asked = admin_pb2_grpc.AdminStub(channel).Stats(admin_pb2.StatsRequest(), timeout=SECONDS)
        return dict(asked.counters)


def flip_a_bit(client: Client, tokens: list[int], block: int, head: int = 0) -> None:
    """Damage a sealed block in the node's memory, in its first layer, by this client's mapping."""
    with client.pin(client.chain(tokens)) as pinned:
        slots = pinned._opened.slots
        at = int(slots.offsets[block]) + client.space.layout.head_bytes + 1_000
        at += head * client.space.layout.strip_stride
        assert at > IDENTITY_OFFSET
        transport = client.connection.link().transport
        transport._writing.bytes[at] ^= np.uint8(4)  # type: ignore[attr-defined]


def swap_heads(client: Client, tokens: list[int], block: int) -> None:
    """Put a prompt's KV anew, with the heads of one of its blocks in the wrong order."""
    blocks, layout = client.chain(tokens), client.space.layout
    shape = (len(tokens), layout.kv_heads, layout.parts, layout.run_bytes // 4)
    kept = [np.zeros(shape, np.float32) for _ in range(layout.layers)]
    assert client.get(blocks, client.memory(kept, DENSE)).blocks == len(blocks)
    rows = slice(block * layout.block_tokens, (block + 1) * layout.block_tokens)
    for layer in kept:
        layer[rows] = layer[rows, ::-1].copy()
    assert client.remove(blocks) == len(blocks)
    assert client.put(blocks, client.memory(kept, DENSE)) == len(blocks)
