"""One etcd member: a channel to it and its services, as gRPC's stubs have them.

The channel is bounded in what it receives, gives up a connection that says nothing, and is closed
with the client, or once nobody has a use for it. It belongs to the event loop that was running when
it was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any, TypeAlias

import grpc
from aetcd.rpc import rpc_pb2 as pb
from aetcd.rpc import rpc_pb2_grpc as stubs

from kvstore.limits import KiB, MiB
from kvstore.metadata.bounds import KEY_BYTES_MAX, VALUE_BYTES_MAX
from kvstore.metadata.etcd.credentials import Certificates, Metadata

REPLY_BYTES_MAX = 4 * MiB  # ranges are paged and watches cut into pieces, so that none has more
_REQUEST_BYTES_MAX = 1_536 * KiB  # what etcd takes by default
_OPTIONS = (
    ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),  # else its connections outlive it
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # a connection takes no longer to be made
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # etcd hangs up on those who ask more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
)
_LATE_SECONDS = 1.0  # by which gRPC may come after a call's own deadline
_NAMES_BYTES = 512  # of a cluster, and what a request says beside key and value

assert VALUE_BYTES_MAX + 2 * KEY_BYTES_MAX + _NAMES_BYTES < _REQUEST_BYTES_MAX

Send: TypeAlias = Callable[..., Awaitable[Any]]  # (request, timeout=, metadata=) -> reply
Method: TypeAlias = "Callable[[Endpoint], Send]"


class Endpoint:
    def __init__(self, url: str, shown: Certificates | None) -> None:
        self.url = url
        target = url.partition("://")[2]
        if shown is None:
            self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(*shown)
            self._channel = grpc.aio.secure_channel(target, credentials, options=_OPTIONS)
        self.kv = stubs.KVStub(self._channel)
        self.lease = stubs.LeaseStub(self._channel)
        self._auth = stubs.AuthStub(self._channel)
        self._watch = stubs.WatchStub(self._channel)

    @property
    def connected(self) -> bool:
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def authenticate(self, user: str, password: str, seconds: float) -> str:
        asked = pb.AuthenticateRequest(name=user, password=password)
        return str((await self._auth.Authenticate(asked, timeout=seconds)).token)

    async def renew(
        self, request: pb.LeaseKeepAliveRequest, *, timeout: float, metadata: Metadata
    ) -> Any:
        """One keep-alive; etcd has a stream for it."""
        call = self.lease.LeaseKeepAlive([request], timeout=timeout, metadata=metadata)
        # In a task of its own: gRPC keeps a cancellation to itself that comes while it connects.
        reading = asyncio.ensure_future(call.read())
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait({reading}, timeout=timeout + _LATE_SECONDS)
            reply = reading.result() if reading.done() else grpc.aio.EOF
            if reply is grpc.aio.EOF:
                raise broken("the stream ended without an answer")
            return reply
        finally:
            call.cancel()
            del reading  # what it raised keeps this frame: each would keep the other and the member

    def watch(self, metadata: Metadata) -> Any:
        """A stream of questions and of changes; whoever asked for it cancels it."""
        return self._watch.Watch(metadata=metadata)

    async def close(self) -> None:
        await self._channel.close()


def broken(words: str) -> grpc.aio.AioRpcError:
    """What gRPC finds nothing wrong with, and yet there is no answer."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, words)


RANGE: Method = attrgetter("kv.Range")
PUT: Method = attrgetter("kv.Put")
DELETE: Method = attrgetter("kv.DeleteRange")
TXN: Method = attrgetter("kv.Txn")
GRANT: Method = attrgetter("lease.LeaseGrant")
RENEW: Method = attrgetter("renew")
REVOKE: Method = attrgetter("lease.LeaseRevoke")
