"""A conductor that says of roles what a test has it say, and remembers what it was told."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc


class Double(conductor_pb2_grpc.ConductorServicer):
    """Says `crew` to the engine that it names, and to all others that they are held back."""

    def __init__(self) -> None:
        self.crew, self.address = pb.BalanceReply.Crew(), ""
        self.asked: list[pb.BalanceRequest] = []
        self.said: list[pb.ReportRequest] = []

    def Balance(self, request: pb.BalanceRequest, context: Any) -> pb.BalanceReply:
        self.asked.append(request)
        crew = self.crew
        if crew.engine_id not in ("", request.engine_id):
            crew = pb.BalanceReply.Crew(engine_id=crew.engine_id, held=True)
        return pb.BalanceReply(crews=[crew])

    def Report(self, requests: Iterator[pb.ReportRequest], context: Any) -> pb.ReportReply:
        for one in requests:
            self.said.append(one)
        return pb.ReportReply()

    @property
    def roles(self) -> list[int]:
        """With which streams began."""
        return [one.engine.elastic for one in self.said if one.HasField("engine")]


@contextmanager
def serving(*doubles: Double) -> Iterator[None]:
    with ExitStack() as stack:
        for one in doubles:
            server = grpc.server(ThreadPoolExecutor(16))
            conductor_pb2_grpc.add_ConductorServicer_to_server(one, server)
            one.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            server.start()
            stack.callback(lambda server=server: server.stop(None).wait())
        yield
