"""What callers of sockets hear when others end them."""

from __future__ import annotations

import socket

from kvstore.client.call_sockets import on_this_host
from kvstore.rpc.socket_client import SocketCalls
from kvstore.rpc.socket_frames import METHODS
from kvstore.wire.v1 import kv_pb2 as pb


def test_a_socket_that_is_closed_while_it_is_taken_is_none_to_call_on() -> None:
    calls, (here, there) = (
        SocketCalls(on_this_host("nowhere", b"token"), "here"),
        socket.socketpair(),
    )
    number = [name for name, _, _ in METHODS].index("Close")
    calls.post(here, number, pb.CloseRequest(), 5.0)
    here.close()
    assert calls.take(5.0) is None
    there.close()
