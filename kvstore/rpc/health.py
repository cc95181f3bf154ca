"""Whether a process serves now, as it says itself by gRPC's health service.

Whoever shows any certificate of the authority may ask; it takes no token.
"""

from __future__ import annotations

from contextlib import closing

from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.config import Credentials
from kvstore.errors import Unavailable
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors


def check_serves(address: str, credentials: Credentials, seconds: float) -> None:
    """Return if the process at HOST:PORT does; raises `Unavailable`, which says why not."""
    with closing(open_channel(address, credentials)) as channel, typed_errors(address):
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"{address} takes no more calls: it is about to end")
