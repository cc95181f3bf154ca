"""Callers that put, get and remove blocks of a node until it dies, and know what they were told.

Whatever becomes of the node, a call of theirs ends soon: with its answer, or with a typed error.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kvstore.client import Client
from kvstore.errors import KVStoreError, Lapsed, Rejected
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import kv_pb2 as pb
from tests.faults.oracle import Known, Oracle, offer
from tests.nodes import CALL_SECONDS, SPEC, Caller, NodeProcess, prompt, put_parts

BLOCKS_MAX = 600  # that one caller puts over gRPC: no SSD has to evict what it acknowledged
BULK_BLOCKS = 150  # of the 256 that DRAM has room for
BULKS_MAX = 20  # each may find the one before not yet on SSD, and push it out of DRAM
ENDS_SECONDS = 15.0  # a call after its node's death: sooner than one that is not answered
_PAUSE_SECONDS = 0.02

assert ENDS_SECONDS < CALL_SECONDS


class Worker:
    """One caller in a thread of its own. `failures` are the errors that no caller should see."""

    def __init__(self, node: NodeProcess, number: int, seed: int) -> None:
        self.oracle = Oracle()
        self.rng = random.Random(f"{seed} {number}")
        self.errors: list[KVStoreError] = []
        self.failures: list[BaseException] = []
        self.blocks = 0
        self._node, self._number, self._prompts = node, number, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """The node is dead, or the worker is to stop."""
        self._stop.set()
        self._thread.join(ENDS_SECONDS)
        assert not self._thread.is_alive(), "a call to a dead node hangs"
        if self.failures:
            raise self.failures[0]

    def step(self) -> None:
        raise NotImplementedError

    def fresh(self, count: int) -> Known:
        self._prompts += 1
        self.blocks += count
        one = Known(prompt(100_000 * (self._number + 1) + self._prompts, count))
        with self.oracle.lock:
            self.oracle.known.append(one)
        return one

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.step()
            except (Rejected, Lapsed) as error:
                self.errors.append(error)
                time.sleep(_PAUSE_SECONDS)
            except BaseException as error:
                self.failures.append(error)
                return


class Streaming(Worker):
    """Puts, gets and removes over gRPC, short prompts, half of the puts durable."""

    def __init__(self, node: NodeProcess, number: int, seed: int) -> None:
        super().__init__(node, number, seed)
        self._caller = Caller(node.address)

    def step(self) -> None:
        known = self.oracle.known
        how = self.rng.random()
        with typed_errors(self._node.address):
            if (not known or how < 0.5) and self.blocks < BLOCKS_MAX:
                self._put(self.fresh(self.rng.randint(1, 6)), durable=self.rng.random() < 0.5)
            elif how < 0.6:
                self._put(self.rng.choice(known), durable=self.rng.random() < 0.5)
            elif how < 0.85:
                self._get(self.rng.choice(known))
            else:
                self._remove(self.rng.choice(known))

    def close(self) -> None:
        self._caller.close()

    def _put(self, one: Known, *, durable: bool) -> None:
        variant = self.oracle.begin_put(one)
        payloads = [offer(name, variant) for name in one.blocks.hashes]
        parts = put_parts(one.blocks, payloads, durable=durable)
        stored = self._caller.kv.Put(parts, timeout=CALL_SECONDS).stored
        self.oracle.end_put(one, variant, stored, durable)

    def _get(self, one: Known) -> None:
        outcomes, found = self._caller.get(one.blocks)
        self.oracle.check_bytes(one, outcomes, found)

    def _remove(self, one: Known) -> None:
        self.oracle.begin_remove(one)
        self._caller.ask("Remove", **self._caller.about(one.blocks))
        self.oracle.end_remove(one)


class Mapping(Worker):
    """An engine's way: many blocks at once through shared memory, and read again later."""

    def __init__(self, node: NodeProcess, number: int, seed: int) -> None:
        super().__init__(node, number, seed)
        self._client = Client.at(node.address, SPEC, deadline_seconds=4.0)
        group = SPEC.groups[0]
        self._shape = (len(group.layers), group.kv_heads, group.block_tokens, 2, group.head_dim)

    def step(self) -> None:
        if self.blocks < BULKS_MAX * BULK_BLOCKS:
            one = self.fresh(BULK_BLOCKS)
            variant = self.oracle.begin_put(one)
            data = [offer(name, variant) for name in one.blocks.hashes]
            self._client.put(one.blocks, self._client.memory(self._tensors(data), "htkd"))
        self._get(self.rng.choice(self.oracle.known))

    def close(self) -> None:
        self._client.close()

    def _get(self, one: Known) -> None:
        tensors = self._tensors([bytes(len(offer(b"", 0)))] * len(one.blocks))
        found = self._client.get(one.blocks, self._client.memory(tensors, "htkd")).blocks
        _, heads, tokens, *rest = self._shape
        cut = [t.reshape(heads, len(one.blocks), tokens, *rest) for t in tensors]
        got = [b"".join(t[:, i].tobytes() for t in cut) for i in range(found)]
        misses = len(one.blocks) - found
        outcomes = [pb.HIT] * found + [pb.ABSENT] * misses
        self.oracle.check_bytes(one, outcomes, [*got, *([b""] * misses)])

    def _tensors(self, blocks: Sequence[bytes]) -> list[np.ndarray]:
        """A tensor a layer: heads, then the tokens of all blocks."""
        layers, heads, tokens, *rest = self._shape
        every = np.frombuffer(b"".join(blocks), dtype=np.float16)
        every = every.reshape(len(blocks), layers, heads, tokens, *rest)
        return [
            np.ascontiguousarray(every[:, layer].swapaxes(0, 1)).reshape(heads, -1, *rest)
            for layer in range(layers)
        ]


class Workers:
    """Two callers of the one kind and one of the other, at once, after one durable put of which
    no later call speaks: however slow the disk is, something has to be there."""

    def __init__(self, node: NodeProcess, seed: int) -> None:
        caller = Caller(node.address)
        caller.register()
        self._first = Known(prompt(99_000, 2), possible={0})
        payloads = [offer(name, 0) for name in self._first.blocks.hashes]
        parts = put_parts(self._first.blocks, payloads, durable=True)
        assert set(caller.kv.Put(parts, timeout=CALL_SECONDS).stored) == {pb.PutReply.STORED}
        self._first.durable = True
        caller.close()
        self.all = [Streaming(node, 0, seed), Streaming(node, 1, seed), Mapping(node, 2, seed)]
        for worker in self.all:
            worker.start()

    def wait(self) -> None:
        for worker in self.all:
            worker.wait()

    def close(self) -> None:
        for worker in self.all:
            with suppress(KVStoreError):
                worker.close()

    def check(self, node: NodeProcess) -> tuple[int, int]:
        """A node that was started again has what it must have; blocks put, and found."""
        caller, offered, there = node.caller(), 0, 0
        outcomes, found = caller.get(self._first.blocks)
        there += Oracle().check_bytes(self._first, outcomes, found)
        Oracle().check_all_there(self._first, outcomes)
        for worker in self.all:
            for one in worker.oracle.known:
                outcomes, found = caller.get(one.blocks)
                there += worker.oracle.check_bytes(one, outcomes, found)
                worker.oracle.check_all_there(one, outcomes)
                offered += len(one.blocks)
        return offered, there
