"""Callers of a real node over UCX, and memory of theirs in which every stray byte shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil

from kvstore.layout import SlotLayout
from kvstore.transfer import calls
from kvstore.transfer.landing import Landing
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_lane import UcxLane
from tests.client.kv import spec_of
from tests.nodes import Caller, NodeProcess, payload, prompt

SPEC = spec_of("ucx", block_tokens=8)
LAYOUT = SlotLayout.of(SPEC, 0)
POISON = 0xA5
OFFERED = ("--transport", "tcp,ucx")
SECONDS = 60.0  # that a slow machine may take
ONE = np.zeros(1, dtype=np.int64)


@contextmanager
def connected(caller: Caller) -> Iterator[DataStream]:
    host, _, port = caller.opened.data_address.rpartition(":")
    stream = DataStream.connect((host, int(port)), 20.0)
    try:
        calls.greet(stream, caller.session, caller.opened.data_token)
        yield stream
    finally:
        stream.close()


@contextmanager
def session(node: NodeProcess) -> Iterator[Caller]:
    caller = Caller(node.address)
    try:
        caller.register(SPEC)
        yield caller
    finally:
        caller.close()


def mover_of(node: NodeProcess) -> psutil.Process:
    found = [
        one
        for one in psutil.Process(node.pid).children()
        if one.status() != psutil.STATUS_ZOMBIE and "kvstore.node.ucx_mover" in one.cmdline()
    ]
    assert len(found) == 1, "a node has one mover"
    return found[0]


def opened(caller: Caller, number: int, **options: Any) -> tuple[Any, bytes]:
    """One sealed block of a prompt, opened: the reply and the block's bytes."""
    chain = prompt(number, spec=SPEC)
    data = payload(chain.hashes[0], SPEC)
    caller.put(chain, [data], spec=SPEC)
    return caller.ask("Open", **caller.about(chain, SPEC), **options), data


def landing(memory: np.ndarray, place: int = 0) -> Landing:
    tokens = np.array([LAYOUT.block_tokens], dtype=np.int32)
    return Landing(LAYOUT, memory, np.array([place], dtype=np.int64), tokens)


def landed(lane: UcxLane, handle: bytes, into: Landing) -> bool:
    """Whether the node moved the block of a handle."""
    return bool([came for came in lane.read([handle], into, ONE, LAYOUT.whole) if len(came)])


def poisoned(size: int = LAYOUT.payload_bytes) -> np.ndarray:
    return np.full(size, POISON, dtype=np.uint8)
