"""Hears what engines report, as one more conductor that sends nobody anything, and learns from it
what their steps cost in a time that has passed."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.fit import DecodeFit, PrefillFit
from kvstore.rpc.channel import OPTIONS
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc

STREAMS = 16  # engines at most


@dataclass(slots=True)
class Steps:
    """Of one engine, each with the moment at which it was told of."""

    prefills: list[tuple[float, int, int, float]] = field(default_factory=list)
    decodes: list[tuple[float, int, int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of an engine of each kind."""

    prefill: PrefillCost
    decode: DecodeCost


class Listener(conductor_pb2_grpc.ConductorServicer):
    """Made by `listening`."""

    def __init__(self) -> None:
        self.address = ""
        self._steps: defaultdict[str, Steps] = defaultdict(Steps)
        self._said: dict[str, pb.ReportRequest.Engine] = {}
        self._lock = threading.Lock()

    def Report(self, requests: Iterator[pb.ReportRequest], context: Any) -> pb.ReportReply:
        name = ""
        for message in requests:
            now = time.monotonic()
            if message.HasField("engine"):
                name = message.engine.engine_id
                self._said[name] = message.engine
            with self._lock:
                steps = self._steps[name]
                for one in message.prefills:
                    steps.prefills.append((now, one.new_tokens, one.prefix_tokens, one.seconds))
                for two in message.steps:
                    steps.decodes.append((now, two.batch, two.context_tokens, two.seconds))
        return pb.ReportReply()

    def costs(self, since: float, until: float) -> Costs:
        """What steps took in that time, whichever engine's they were."""
        prior = next(one for one in self._said.values() if one.HasField("prefill")).prefill
        prefill = PrefillFit(PrefillCost(prior.a, prior.b, prior.c))
        prior = next(one for one in self._said.values() if one.HasField("decode")).decode
        decode = DecodeFit(DecodeCost(prior.a, prior.b, prior.c))
        with self._lock:
            every = list(self._steps.items())
        for at, new, prefix, seconds in sorted(
            one for name, steps in every if self._said[name].HasField("prefill")
            for one in steps.prefills
        ):  # fmt: skip
            if since <= at < until:
                prefill.observe(new, prefix, seconds)
        for at, batch, context, seconds in sorted(
            one for name, steps in every if self._said[name].HasField("decode")
            for one in steps.decodes
        ):  # fmt: skip
            if since <= at < until:
                decode.observe(batch, context, seconds)
        return Costs(prefill.cost, decode.cost)


@contextmanager
def listening() -> Iterator[Listener]:
    """Serves on loopback for as long as the block lasts."""
    listener = Listener()
    server = grpc.server(ThreadPoolExecutor(STREAMS), options=OPTIONS)
    conductor_pb2_grpc.add_ConductorServicer_to_server(listener, server)
    listener.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield listener
    finally:
        server.stop(None).wait()
