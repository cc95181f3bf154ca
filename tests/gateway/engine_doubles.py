"""Engines and a planner that do as they are told, and a dispatcher run over them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

from kvstore.config import OPEN
from kvstore.errors import Invalid, Overloaded, TooLate, Unavailable
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import One
from kvstore.logprobs import Logprobs
from kvstore.rpc.status import refuse
from kvstore.wire.v1 import conductor_pb2, engine_pb2_grpc
from kvstore.wire.v1 import engine_pb2 as pb
from tests.nodes import CALL_SECONDS, SPEC

PROMPT = tuple(range(100))
TOKENS = [7, 8, 9, 10]


def of_token(token: int) -> pb.Logprobs:
    one = said(token)
    tops, values = zip(*one.top, strict=True)
    return pb.Logprobs(logprob=one.logprob, top_tokens=tops, top_logprobs=values)


class Double(engine_pb2_grpc.EngineServicer):
    """Goes on with TOKENS behind PROMPT. `dies_after` so many of them; `refuses` all; one prefill
    `lasts` until it is stopped; has `room` for so many tokens of one request. Says that it `reused`
    so many in a prefill, and `loaded` so many behind one. Has the weights of a `revision`."""

    def __init__(
        self,
        dies_after: int | None = None,
        refuses: bool = False,
        lasts: bool = False,
        room: int = 1 << 20,
        reused: int = 64,
        loaded: int = 99,
        revision: str = SPEC.revision,
    ) -> None:
        self.revision = revision
        self.room, self.reused, self.loaded = room, reused, loaded
        self.dies_after, self.refuses, self.lasts = dies_after, refuses, lasts
        self.stopped = threading.Event()
        self.prefills: list[pb.PrefillRequest] = []
        self.generates: list[pb.GenerateRequest] = []
        self.address = ""

    def tell_end(self, context: Any) -> None:
        """`stopped` is set when the call ends, or now if it has."""
        if not context.add_callback(self.stopped.set):
            self.stopped.set()

    def Prefill(self, request: pb.PrefillRequest, context: Any) -> Iterator[pb.PrefillReply]:
        self.prefills.append(request)
        if request.revision != self.revision:
            refuse(context, Unavailable("it has other weights"))
            return
        if self.refuses:
            refuse(context, Overloaded("not begun in time"))
            return
        if self.lasts:
            self.tell_end(context)  # before its caller may hang up: this is not gone on with then
        yield pb.PrefillReply(hand_off=pb.HandOff(handles=[b"h"]))
        if self.lasts:
            self.stopped.wait(CALL_SECONDS)
        done = pb.PrefillReply.Done(reused_tokens=self.reused, miss="absent")
        yield pb.PrefillReply(done=done)

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        self.generates.append(request)
        if request.revision != self.revision:
            refuse(context, Unavailable("it has other weights"))
            return
        if self.refuses:
            refuse(context, Overloaded("not begun in time"))
            return
        if len(request.prompt) + request.max_new_tokens > self.room:
            refuse(context, Invalid(f"more than the {self.room} that fit"))
            return
        came = len(request.prompt) - len(PROMPT)
        lacks = "damaged" if self.loaded < 99 else ""
        started = pb.GenerateReply.Started(pool_tokens=self.loaded, miss=lacks)
        yield pb.GenerateReply(started=started)
        for sent, token in enumerate(TOKENS[came : came + request.max_new_tokens]):
            if sent == self.dies_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            logprobs = of_token(token) if request.HasField("logprobs") else None
            yield pb.GenerateReply(token=token, logprobs=logprobs)
        yield pb.GenerateReply(finished=pb.GenerateReply.Finished())


class Planner:
    """Says so, each time; `full` so often when it is asked who decodes, and then maybe that it is
    too late."""

    def __init__(
        self,
        prefill: str,
        decode: str,
        computed: int = 100,
        full: int = 0,
        late: bool = False,
        coming: int = 0,
        there: int = 0,
        own: int = 0,
        shared: int = 0,
    ) -> None:
        self._coming, self._there, self._own, self._shared = coming, there, own, shared
        self._prefill, self._decode, self._computed = prefill, decode, computed
        self._full, self._late = full, late
        self.asked: list[conductor_pb2.ScheduleRequest] = []
        self.given_up: list[str] = []

    def give_up(self, request: conductor_pb2.ScheduleRequest) -> None:
        self.given_up.append(request.request_id)

    def schedule(
        self, request: conductor_pb2.ScheduleRequest
    ) -> conductor_pb2.ScheduleReply | None:
        copy = conductor_pb2.ScheduleRequest()
        copy.CopyFrom(request)
        self.asked.append(copy)
        reply = conductor_pb2.ScheduleReply(priority_ms=30, aging=0.03, drop_after_ms=9_000)
        reply.decode.address = self._decode
        if request.phase == conductor_pb2.DECODE:
            self._full -= 1
            if self._full >= 0:
                raise Overloaded("no room", 1)
            if self._late:
                raise TooLate("no room in time", 10_000)
            return reply
        reply.prefill.address = self._prefill
        reply.split.computed_tokens = self._computed
        reply.split.coming_blocks, reply.split.there_blocks = self._coming, self._there
        reply.split.own_blocks, reply.split.shared_blocks = self._own, self._shared
        return reply


class Nobody:
    """No conductor answers."""

    def give_up(self, request: conductor_pb2.ScheduleRequest) -> None:
        """Nor hears it."""

    def schedule(self, request: conductor_pb2.ScheduleRequest) -> None:
        return None


@contextmanager
def serving(*doubles: Double) -> Iterator[None]:
    with ExitStack() as stack:
        for one in doubles:
            server = grpc.server(ThreadPoolExecutor(4))
            engine_pb2_grpc.add_EngineServicer_to_server(one, server)
            one.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            server.start()
            stack.callback(lambda server=server: server.stop(None).wait())
        yield


def run(planner: Any, *engines: str, **options: Any) -> tuple[list[int], Any]:
    came: list[tuple[int, Logprobs | None]] = []
    dispatcher = Dispatcher(planner, One(SPEC), engines, OPEN)

    def told(token: int, logprobs: Logprobs | None) -> None:
        came.append((token, logprobs))

    try:
        outcome = dispatcher.run(Request("r", PROMPT, len(TOKENS), **options), told)
    finally:
        dispatcher.close()
    assert [token for token, _ in came] == outcome.tokens
    if "logprobs" in options:  # one of each token
        assert [logprobs for _, logprobs in came] == list(map(said, outcome.tokens))
    return outcome.tokens, outcome


def said(token: int) -> Logprobs:
    """What a double says of a token."""
    return Logprobs(-token / 8, ((token + 1, -0.5), (token, -token / 8)))


class Endless(Double):
    """Says one token, and goes on until its caller hangs up."""

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateReply]:
        self.tell_end(context)
        yield pb.GenerateReply(token=TOKENS[0])
        self.stopped.wait(CALL_SECONDS)
