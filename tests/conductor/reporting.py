"""Engines that only report: what a real one would say, said by a test over real gRPC."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, Self

import grpc

from kvstore.block import Chain
from kvstore.config import Credentials
from kvstore.rpc.channel import open_channel
from kvstore.rpc.identity import TENANT_KEY
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc
from tests.nodes import CALL_SECONDS, SPEC

BEAT_SECONDS = 0.5


def engine(name: str, **fields: Any) -> pb.ReportRequest.Engine:
    """What an engine says of itself: 10 ms and 1 ms a token for a prefill."""
    said: dict[str, Any] = {
        "engine_id": name,
        "address": "127.0.0.1:7500",
        "node_id": f"node of {name}",
        "namespace": SPEC.digest,
        "block_tokens": 4,
        "token_bytes": 128.0,
        "room_tokens": 100_000,
        "prefill": pb.ReportRequest.Cost(a=0.01, b=1e-3),
        "decode": pb.ReportRequest.Cost(a=0.01, b=1e-3),
        "link_bytes_per_second": 1e9,
    }
    said.update(fields)
    return pb.ReportRequest.Engine(**{one: value for one, value in said.items() if value})


def accepted(request: str, tokens: int, blocks: Chain | None = None) -> Any:
    hashes = blocks.hashes if blocks else ()
    return pb.ReportRequest.Accepted(request_id=request, tokens=tokens, hashes=hashes)


class Reporting:
    """One stream of reports to one conductor; beats by itself until it is to be silent."""

    def __init__(
        self,
        address: str,
        first: pb.ReportRequest,
        tenant: str = "default",
        credentials: Credentials | None = None,
    ) -> None:
        self._channel = open_channel(address, credentials)
        self._said: queue.Queue[pb.ReportRequest | None] = queue.Queue()
        self._said.put(first)
        self.beating = threading.Event()
        self.beating.set()
        stub = conductor_pb2_grpc.ConductorStub(self._channel)
        self.call = stub.Report.future(self._messages(), metadata=[(TENANT_KEY, tenant)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def say(self, **fields: Any) -> None:
        self._said.put(pb.ReportRequest(**fields))

    def refused(self) -> grpc.RpcError:
        """How the conductor ended it."""
        error = self.call.exception(timeout=CALL_SECONDS)
        assert isinstance(error, grpc.RpcError)
        return error

    def end(self) -> None:
        """Hang up."""
        self._said.put(None)
        self.call.cancel()
        self._channel.close()

    def _messages(self) -> Iterator[pb.ReportRequest]:
        while True:
            try:
                message = self._said.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                if not self.beating.is_set():
                    continue
                message = pb.ReportRequest()
            if message is None:
                return
            yield message


def asked(request_id: str, **fields: Any) -> pb.ScheduleRequest:
    """A prompt of 100 tokens that nobody has blocks of."""
    said = {"request_id": request_id, "namespace": SPEC.digest, "tokens": 100, **fields}
    return pb.ScheduleRequest(**said)


def scheduled(
    stub: conductor_pb2_grpc.ConductorStub, request: str, tenant: str = "default", **fields: Any
) -> pb.ScheduleReply:
    message, named = asked(request, **fields), [(TENANT_KEY, tenant)]
    return stub.Schedule(message, timeout=CALL_SECONDS, metadata=named)


def decoded_by(stub: conductor_pb2_grpc.ConductorStub, request: str) -> str:
    """The engine that is to decode it; empty if nobody can."""
    try:
        reply = scheduled(stub, request, phase=pb.DECODE, tokens=400)
    except grpc.RpcError:
        return ""
    return str(reply.decode.engine_id)
