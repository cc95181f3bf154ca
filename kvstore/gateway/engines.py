"""Engines as a caller of many has them: a channel to each of ours, and two things that are asked.
Servers of others are asked over HTTP, as their addresses say (`kvstore.address`).

`generate` puts down what came of it as it comes; whatever goes wrong is raised by its type.
"""

from __future__ import annotations

import threading
from typing import Any

from kvstore.address import speaks_http, speaks_sglang
from kvstore.config import Credentials
from kvstore.errors import KVStoreError
from kvstore.gateway import sglang, vllm, vllm_prefill
from kvstore.gateway.caller import Caller
from kvstore.gateway.logprobs import of_reply
from kvstore.gateway.run import Place, Run
from kvstore.gateway.silence import ended_by_silence
from kvstore.limits import REPORTS_MAX
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.rpc.threads import begin_thread
from kvstore.wire.v1 import engine_pb2 as pb
from kvstore.wire.v1 import engine_pb2_grpc

DEADLINE_SECONDS = 120.0  # of a prefill, however long its prompt
SILENCE_SECONDS = 120.0  # in which more of an answer comes, or nothing will
CHANNELS_MAX = REPORTS_MAX  # that are kept: as many engines as a conductor knows


class Engines:
    """By their addresses. Safe to use from several threads."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()
        self._channels: dict[str, Any] = {}  # grpc has no types

    def close(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def prefill(
        self, place: Place, request: pb.PrefillRequest, run: Run, wait_seconds: float
    ) -> Prefill | vllm_prefill.Prefill:
        """Returns once its KV begins to be computed; servers of others do not say when that is, and
        are thought to begin so long from now."""
        address, caller = place.address, run.caller
        if speaks_http(address):
            told = (request, run.request.adapter, caller, SILENCE_SECONDS)
            theirs = vllm_prefill.Prefill(place, *told)
            theirs.begins(wait_seconds)
            return theirs
        replies = self._stub(address).Prefill(request, timeout=DEADLINE_SECONDS)
        return Prefill(address, replies, caller)

    def generate(self, place: Place, request: pb.GenerateRequest, run: Run) -> None:
        address = place.address
        if speaks_http(address):
            kind = sglang if speaks_sglang(address) else vllm
            kind.generate(place, request, run, SILENCE_SECONDS)
            return
        out, wanted = run.outcome, run.request.logprobs
        replies = self._stub(address).Generate(request)
        try:
            with (
                ended_by_silence(address, replies, SILENCE_SECONDS) as heard,
                typed_errors(address),
                run.caller.waits_for(replies),
            ):
                for reply in replies:
                    heard.again()
                    match reply.WhichOneof("part"):
                        case "token":
                            run.token(reply.token, of_reply(address, reply, wanted))
                        case "started":
                            out.untold = False
                            out.pool_tokens = reply.started.pool_tokens
                            out.hand_off_tokens = reply.started.hand_off_tokens
                            out.computed_tokens = reply.started.computed_tokens
                            out.loaded_bytes += reply.started.loaded_bytes
                            out.miss = reply.started.miss
        finally:
            replies.cancel()  # of one that is done nothing; who is told may have raised

    def forget(self, address: str) -> None:
        """It may never come back. Others may still wait for it: its channel goes with the last."""
        with self._lock:
            self._channels.pop(address, None)

    def _stub(self, address: str) -> engine_pb2_grpc.EngineStub:
        with self._lock:
            channel = self._channels.pop(address, None) or open_channel(address, self._credentials)
            self._channels[address] = channel
            if len(self._channels) > CHANNELS_MAX:
                del self._channels[next(iter(self._channels))]  # that used longest ago
        return engine_pb2_grpc.EngineStub(channel)


class Prefill:
    """One under way, read by a thread of its own: gRPC drops what is unread at a call's end."""

    def __init__(self, address: str, replies: Any, caller: Caller) -> None:
        """Returns once its hand-off is known. Raises what it failed by before that."""
        self.address, self._replies, self._caller = address, replies, caller
        self.hand_off: pb.HandOff | None = None
        self._done: pb.PrefillReply.Done | None = None
        self._error: KVStoreError | None = None
        self._known, self._over = threading.Event(), threading.Event()
        try:
            begin_thread(self._read, f"prefill {address}", address)
        except KVStoreError:
            replies.cancel()
            raise
        self._known.wait()  # the call has a deadline
        if self.hand_off is None and self._error is not None:
            raise self._error

    def end(self, seconds: float = vllm_prefill.OVER_SECONDS) -> pb.PrefillReply.Done | None:
        """What was done; None where the engine went away, for whoever decodes has computed what it
        did not get, and where it is not done by then. What is not over by then is to stop."""
        if not self._over.wait(seconds):
            self._replies.cancel()
        return self._done

    def _read(self) -> None:
        try:
            with typed_errors(self.address), self._caller.waits_for(self._replies):
                for reply in self._replies:
                    if reply.HasField("hand_off"):
                        self.hand_off = reply.hand_off
                        self._known.set()
                    else:
                        self._done = reply.done
        except KVStoreError as error:
            self._error = error
        finally:
            self._over.set()
            self._known.set()
