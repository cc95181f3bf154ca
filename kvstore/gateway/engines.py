"""Engines as a caller of many has them: a channel to each, and the two things that are asked.

`generate` puts down what came of it as it comes; whatever goes wrong is raised by its type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kvstore.config import Credentials
from kvstore.errors import KVStoreError
from kvstore.gateway.request import Outcome
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import engine_pb2 as pb
from kvstore.wire.v1 import engine_pb2_grpc

DEADLINE_SECONDS = 120.0  # of a call, however long its prompt and its answer
_OVER_SECONDS = 1.0  # what a prefill did is known about as soon as its request is decoded


class Engines:
    """By their addresses, HOST:PORT each. Safe to use from several threads."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()
        self._channels: dict[str, Any] = {}  # grpc has no types

    def close(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def prefill(self, address: str, request: pb.PrefillRequest) -> Prefill:
        """Returns once its KV begins to be computed."""
        return Prefill(address, self._stub(address).Prefill(request, timeout=DEADLINE_SECONDS))

    def generate(
        self, address: str, request: pb.GenerateRequest, told: Callable[[int], None], out: Outcome
    ) -> None:
        with typed_errors(address):
            for reply in self._stub(address).Generate(request, timeout=DEADLINE_SECONDS):
                match reply.WhichOneof("part"):
                    case "token":
                        told(reply.token)
                    case "started":
                        out.pool_tokens = reply.started.pool_tokens
                        out.hand_off_tokens = reply.started.hand_off_tokens
                        out.computed_tokens = reply.started.computed_tokens
                        out.loaded_bytes += reply.started.loaded_bytes
                        out.miss = reply.started.miss

    def forget(self, address: str) -> None:
        """It may never come back. Others may still wait for it: its channel goes with the last."""
        with self._lock:
            self._channels.pop(address, None)

    def _stub(self, address: str) -> engine_pb2_grpc.EngineStub:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = open_channel(address, self._credentials)
        return engine_pb2_grpc.EngineStub(channel)


class Prefill:
    """One under way. What it says is read when it is wanted: it is two short messages."""

    def __init__(self, address: str, replies: Any) -> None:
        self.address, self._replies = address, replies
        self._over = threading.Event()
        if not replies.add_callback(self._over.set):
            self._over.set()
        with typed_errors(address):
            first: pb.PrefillReply = next(replies, pb.PrefillReply())
        self.hand_off: pb.HandOff | None = first.hand_off if first.HasField("hand_off") else None
        self._done: pb.PrefillReply.Done | None = first.done if first.HasField("done") else None

    def end(self, seconds: float = _OVER_SECONDS) -> pb.PrefillReply.Done | None:
        """What was done; None where the engine went away, or is not done by then: it is to stop."""
        if not self._over.wait(seconds):
            self._replies.cancel()
            return None
        try:
            with typed_errors(self.address):
                for reply in self._replies:
                    self._done = reply.done
        except KVStoreError:
            return None  # whoever decodes has computed what it did not get
        return self._done
