"""Tells conductors of an engine, so that they know its load and send it requests.

The engine's threads say what happens and go on: they are never kept waiting and never told of a
failure. Each conductor has a thread and a stream of its own; one that cannot be reached is tried
again, with what it is shown by then, and told all anew.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import grpc

from kvstore.client.outbox import Outbox
from kvstore.config import Credentials
from kvstore.errors import KVStoreError
from kvstore.limits import CREW_GATHERS_SECONDS, REPORT_SILENCE_SECONDS
from kvstore.rpc.lasting import LastingStub
from kvstore.rpc.threads import threads_for
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc

log = logging.getLogger(__name__)

PACE_SECONDS = 0.02  # between two messages: what happens meanwhile is in one
QUIET_SECONDS = 1.0  # after which an engine to which nothing happens says that it is there
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.1, 2.0  # before a conductor is tried again
NODE_SECONDS = 5.0  # between two looks at which node an engine has
assert REPORT_SILENCE_SECONDS + 2 * PAUSE_SECONDS_MAX < CREW_GATHERS_SECONDS
_HEARD_SECONDS = 1.0  # of a stream: who refuses one, or is not there, ends it sooner
LEAVE_SECONDS = 1.0  # in which a conductor is told by one that closes
_CLOSE_SECONDS = 5.0


class Reporter:
    """One engine's word to all of its conductors, HOST:PORT each, until `close`.

    Where `engine` does not say which node's memory is its own, `node` does: it is asked before each
    stream and now and then, on a thread of its own. Where it raises a `KVStoreError` it is the one
    that it was before, or is asked again later.

    Raises `ConfigError` where the token or the certificate cannot be read now; from then on those
    of before are shown for as long as new ones cannot be read.
    """

    def __init__(
        self,
        engine: pb.ReportRequest.Engine,
        conductors: Sequence[str],
        credentials: Credentials | None = None,
        node: Callable[[], str] | None = None,
    ) -> None:
        told = node or (lambda: engine.node_id)
        kind = conductor_pb2_grpc.ConductorStub
        # All of them before the first thread: credentials that cannot be read are whoever starts an
        # engine's to hear of.
        stubs = [LastingStub(one, kind, credentials) for one in conductors]
        self._streams = [_Stream(one, Outbox(engine), told) for one in stubs]

    def accepted(
        self, request: str, tokens: int, prefix_tokens: int = 0, hashes: Sequence[bytes] = ()
    ) -> None:
        """A prompt waits here; `hashes` are of its blocks, which others may count on."""
        for one in self._streams:
            one.outbox.accept(request, tokens, prefix_tokens, hashes)

    def began(self, request: str) -> None:
        self._became("began", request)

    def ended(self, request: str) -> None:
        """Its prefill is over."""
        self._became("ended", request)

    def decoding(self, request: str) -> None:
        """It is in the load that is said next."""
        self._became("decoding", request)

    def given_up(self, request: str) -> None:
        self._became("given_up", request)

    def load(self, batch: int, context_tokens: int) -> None:
        """Sequences that are decoded, and tokens of KV of all of them."""
        for one in self._streams:
            one.outbox.load(batch, context_tokens)

    def over(self, output_tokens: int) -> None:
        """A request that was decoded here has come to its end, with so many tokens."""
        for one in self._streams:
            one.outbox.over(output_tokens)

    def prefilled(self, new_tokens: int, prefix_tokens: int, seconds: float) -> None:
        """A prefill of `new_tokens` behind `prefix_tokens`, which nothing else ran beside."""
        for one in self._streams:
            one.outbox.prefilled(new_tokens, prefix_tokens, seconds)

    def stepped(self, batch: int, context_tokens: int, seconds: float) -> None:
        """A step in which sequences were decoded and nothing else."""
        for one in self._streams:
            one.outbox.stepped(batch, context_tokens, seconds)

    def own(self, dropped: Sequence[bytes], held: Sequence[bytes]) -> None:
        """Hashes of blocks in the engine's own memory: those that are gone, and those that came. Of
        those held every block before them in their chain is held as well."""
        for one in self._streams:
            one.outbox.own(dropped, held)

    def adapter(self, name: str, weights: bytes) -> None:
        """It has loaded a LoRA adapter, which requests name as their model; `weights` is the digest
        by which it makes hashes of their blocks, or empty where these have no name."""
        for one in self._streams:
            one.outbox.adapter(name, weights)

    def forget_own(self) -> None:
        """Nothing is there any more, or nobody knows what."""
        for one in self._streams:
            one.outbox.forget_own()

    def take_role(self, role: pb.Role) -> None:
        """The engine can switch, and does this from now on."""
        for one in self._streams:
            one.outbox.take_role(role)

    def close(self) -> None:
        """Conductors send nothing here from now on, and say so to callers who know the engine."""
        for one in self._streams:
            one.leave()
        until = time.monotonic() + LEAVE_SECONDS
        for one in self._streams:
            one.join(max(0.0, until - time.monotonic()))
        for one in self._streams:
            one.stop()
        for one in self._streams:
            one.join(_CLOSE_SECONDS)

    def _became(self, what: str, request: str) -> None:
        for one in self._streams:
            one.outbox.became(what, request)


class _Stream:
    """To one conductor, again and again."""

    def __init__(self, conductor: LastingStub, outbox: Outbox, node: Callable[[], str]) -> None:
        self.outbox, self._node, self._known = outbox, node, ""
        self._conductor, self._address = conductor, conductor.address
        self._over = threading.Event()
        self._calling = threading.Lock()
        self._call: Any = None  # grpc has no types
        name = f"report {self._address}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Its last word is said, if the conductor hears it."""
        self._over.set()
        self.outbox.end()

    def stop(self) -> None:
        with self._calling:
            if self._call is not None:
                self._call.cancel()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        pause, complaint = PAUSE_SECONDS_MIN, ""
        with closing(self._conductor) as conductor:
            while not self._over.is_set():
                stub, began = conductor.now, math.inf
                try:
                    self.outbox.on_node(self._node_now())
                    said = self._said()
                    with self._calling, threads_for(self._address):
                        self._call = stub.Report.future(said)
                    began = time.monotonic()
                    self._wait()
                    pause = PAUSE_SECONDS_MIN
                except (grpc.RpcError, grpc.FutureCancelledError, KVStoreError) as error:
                    text = error.details() if isinstance(error, grpc.RpcError) else ""
                    if isinstance(error, KVStoreError):
                        text = str(error)
                    if text and text != complaint and not self._over.is_set():
                        log.warning("conductor %s hears no reports: %s", self._address, text)
                    complaint = text
                    conductor.renewed(stub)
                self.outbox.end()
                if time.monotonic() - began > _HEARD_SECONDS:
                    pause = PAUSE_SECONDS_MIN
                self._over.wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _node_now(self) -> str:
        """Raises a `KVStoreError` where it was never known: whose node is away goes on."""
        try:
            self._known = self._node()
        except KVStoreError:
            if not self._known:
                raise
        return self._known

    def _wait(self) -> None:
        """Until the call is over; it is ended where the node is another one by now."""
        while True:
            try:
                self._call.result(timeout=NODE_SECONDS)
                return
            except grpc.FutureTimeoutError:
                before = self._known
                if self._node_now() != before:
                    self.outbox.end()

    def _said(self) -> Iterator[pb.ReportRequest]:
        """Read by a thread of gRPC's for as long as the call lasts."""
        stream = self.outbox.begin()
        while not self._over.is_set():
            message = self.outbox.next(stream, QUIET_SECONDS)
            if message is None:
                break
            yield message
            self._over.wait(PACE_SECONDS)
        if self._over.is_set():
            yield pb.ReportRequest(leaves=True)
