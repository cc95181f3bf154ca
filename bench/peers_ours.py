"""Moonpool as a peer to be measured: a client's batched calls on a node in another process.

Objects are blocks that are named by keys of the caller's own, as Mooncake's are, and making the
block's hash of such a key counts. A block of each size has 8 KV heads of 128 bfloat16, K and V, so
its strips, the parts that are verified singly, are an eighth of a layer: 128 KiB where blocks have
1 MiB.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.pool import RUN_BYTES, bfloat16_like, touched
from kvstore.client import PAGED, Client, KVSpec
from kvstore.limits import KiB

KV_HEADS, PARTS = 8, 2
CALL_SECONDS = 60.0  # a busy machine makes a bench slow, and shall not make it fail
STRIP_BYTES_MAX = 128 * KiB  # larger blocks have more layers, not longer strips


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block of some bytes is made up."""

    layers: int
    tokens: int

    @classmethod
    def of(cls, block_bytes: int) -> Shape:
        strip_bytes = min(block_bytes // KV_HEADS, STRIP_BYTES_MAX)
        tokens = strip_bytes // (PARTS * RUN_BYTES)
        return cls(block_bytes // (KV_HEADS * strip_bytes), tokens)

    @property
    def spec(self) -> KVSpec:
        name = f"peers-{self.layers}-{self.tokens}"
        return bfloat16_like(name, self.layers, KV_HEADS, self.tokens)

    @property
    def strip_bytes(self) -> int:
        return self.tokens * PARTS * RUN_BYTES


class Moonpool:
    """The caller's side, for `count` blocks of one size. Use as a context manager."""

    def __init__(self, client: Client, count: int, seed: int) -> None:
        self._client, self._count = client, count
        layout, dice = client.space.layout, np.random.default_rng(seed)
        shape = (count, layout.kv_heads, layout.block_tokens, layout.parts, layout.run_bytes)
        self._source, self._target = (
            [touched(shape) for _ in range(layout.layers)] for _ in range(2)
        )
        for layer in self._source:
            layer.reshape(-1)[:] = np.frombuffer(dice.bytes(layer.nbytes), np.uint8)
        table = np.arange(count)
        self._from = client.memory(self._source, PAGED, table)
        self._into = client.memory(self._target, PAGED, table)
        self._singles = [
            (client.memory(self._source, PAGED, [i]), client.memory(self._target, PAGED, [i]))
            for i in range(count)
        ]
        self._stored: list[list[str]] = []

    @classmethod
    def at(cls, directory: Path, shape: Shape, count: int, transport: str) -> Moonpool:
        """`transport` as for `Client`."""
        client = Client.at(
            directory,
            shape.spec,
            label="bench peers",
            deadline_seconds=CALL_SECONDS,
            transport=transport,
        )
        return cls(client, count, seed=count)

    def __enter__(self) -> Moonpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def put(self, batch: str) -> float:
        keys = [f"{batch}-{i}" for i in range(self._count)]
        self._stored.append(keys)
        started = time.perf_counter()
        stored = self._client.store_each(self._client.keyed(keys), self._from)
        seconds = time.perf_counter() - started
        if not all(stored):
            raise RuntimeError(f"{sum(stored)} of {self._count} blocks were stored")
        return seconds

    def get(self, batch: str) -> float:
        keys = [f"{batch}-{i}" for i in range(self._count)]
        started = time.perf_counter()
        loaded = self._client.load_each(self._client.keyed(keys), self._into)
        seconds = time.perf_counter() - started
        if not all(loaded):
            raise RuntimeError(f"{sum(loaded)} of {self._count} blocks came")
        return seconds

    def put_singly(self, batch: str, count: int) -> float:
        """Seconds a call, over so many calls."""
        keys = [f"{batch}-{i}" for i in range(count)]
        self._stored.append(keys)
        started = time.perf_counter()
        for key, (source, _) in zip(keys, self._singles, strict=False):
            if not all(self._client.store_each(self._client.keyed([key]), source)):
                raise RuntimeError("a block was not stored")
        return (time.perf_counter() - started) / count

    def get_singly(self, batch: str, count: int) -> float:
        keys = [f"{batch}-{i}" for i in range(count)]
        started = time.perf_counter()
        for key, (_, target) in zip(keys, self._singles, strict=False):
            if not all(self._client.load_each(self._client.keyed([key]), target)):
                raise RuntimeError("a block did not come")
        return (time.perf_counter() - started) / count

    def spoil(self) -> None:
        for layer in self._target:
            layer[:] = 0

    def check(self) -> None:
        for got, want in zip(self._target, self._source, strict=True):
            if not np.array_equal(got, want):
                raise RuntimeError("Moonpool's bytes came back wrong")

    def forget(self) -> None:
        """Nothing of ours is in the node."""
        for keys in self._stored:
            self._client.remove(self._client.keyed(keys))
        self._stored.clear()
