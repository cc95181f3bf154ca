"""Real conductors send requests to engines that report to them, over gRPC."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import Reporting, engine, scheduled
from tests.nodes import eventually, refused
from tests.pools import ConductorProcess, Nodes, pool


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pool() as made:
        yield made


@pytest.fixture(scope="module")
def conductor(nodes: Nodes) -> ConductorProcess:
    return nodes.conductor()


def sends_to(conductor: ConductorProcess, request: str = "probe", **fields: object) -> str:
    """The engine that a request is sent to; empty if to nobody."""
    try:
        return scheduled(conductor.stub, request, **fields).prefill.engine_id
    except grpc.RpcError:
        return ""


def reporting(conductor: ConductorProcess, name: str, **fields: object) -> Reporting:
    """An engine that has begun to report."""
    return Reporting(conductor.address, pb.ReportRequest(engine=engine(name, **fields)))


def test_a_request_is_sent_to_an_engine_that_reports_and_to_none_whose_stream_broke(
    conductor: ConductorProcess,
) -> None:
    said = refused(lambda: scheduled(conductor.stub, "r"))
    assert said.kind == "Unavailable" and "no engine of yours" in said.text
    with reporting(conductor, "one", address="127.0.0.1:7501"):
        eventually(lambda: sends_to(conductor) == "one")
        reply = scheduled(conductor.stub, "r", waited_ms=5)
        assert reply.prefill.address == "127.0.0.1:7501" and reply.decode.engine_id == "one"
        assert reply.split.computed_tokens == 100
        assert reply.ttft_ms >= 115, "the prefill takes 110 ms, and 5 were waited"
        with reporting(conductor, "two", prefill=pb.ReportRequest.Cost(a=0.001, b=1e-4)):
            eventually(lambda: sends_to(conductor) == "two")
        eventually(lambda: sends_to(conductor) == "one")
    eventually(lambda: sends_to(conductor) == "")
