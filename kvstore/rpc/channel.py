"""A gRPC channel as every Moonpool caller opens it."""

from __future__ import annotations

import grpc

from kvstore.limits import RPC_MESSAGE_BYTES_MAX, RPC_REPLY_BYTES_MAX

_OPTIONS = (
    ("grpc.max_receive_message_length", RPC_REPLY_BYTES_MAX),
    ("grpc.max_send_message_length", RPC_MESSAGE_BYTES_MAX),
    # A channel of its own per client: shared ones would mix deadlines and outlive their user.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
)


def open_channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=_OPTIONS)
