"""What callers of sockets hear when others end them."""

from __future__ import annotations

import socket

import pytest

from kvstore.client.call_sockets import on_this_host
from kvstore.errors import Unavailable
from kvstore.rpc.socket_client import SocketCalls
from kvstore.rpc.socket_frames import ANSWER, METHODS, OK
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


def test_an_answer_that_is_no_message_is_its_nodes_failure_and_the_socket_is_of_no_use_more() -> (
    None
):
    calls, (here, there) = (
        SocketCalls(on_this_host("nowhere", b"token"), "a:1"),
        socket.socketpair(),
    )
    number = [name for name, _, _ in METHODS].index("Match")
    no_message = b"\xff\xff\xff"
    with there:
        there.sendall(ANSWER.pack(len(no_message), OK, 0, 0) + no_message)
        with pytest.raises(Unavailable, match="what node a:1 answered cannot be read"):
            calls.call(here, number, pb.MatchRequest(), 5.0)
        assert here.fileno() == -1 and not calls._free
