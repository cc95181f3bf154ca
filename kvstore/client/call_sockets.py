"""Where a caller's sockets for calls come from: the node's Unix socket, or another host's data
port. Whoever connects has shown a token of its session by the time the socket is there.
"""

from __future__ import annotations

import socket
import time

from kvstore.rpc.socket_client import Connect, Show, received, seconds_left
from kvstore.rpc.socket_frames import WELCOME
from kvstore.transfer.frames import CALLS_KIND, CALLS_MAGIC, HELLO, Welcome
from kvstore.transfer.frames import WELCOME as ANSWER
from kvstore.transfer.stream import LatestTls, host_and_port, prepare, reached


def on_this_host(path: str, token: bytes) -> Connect:
    """By the node's Unix socket."""

    def connect(seconds: float, show: Show) -> socket.socket:
        until = time.monotonic() + seconds
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(seconds)
            show(made)
            made.connect(path)
            made.sendall(token)
            if received(made, len(WELCOME), until) != WELCOME:
                raise OSError("what answers there takes no calls")
        except BaseException:
            made.close()
            raise
        return made

    return connect


def at_data_port(
    address: str, session: bytes, token: bytes, tls: LatestTls | None = None
) -> Connect:
    """By the port at which the node moves bytes. `address` is HOST:PORT."""
    where = host_and_port(address)

    def connect(seconds: float, show: Show) -> socket.socket:
        until = time.monotonic() + seconds
        made = reached(where, seconds)
        try:
            prepare(made)
            show(made)
            made.settimeout(seconds_left(until))
            made.sendall(CALLS_KIND)
            if tls is not None:
                made = tls().wrap_socket(
                    made, server_hostname=where[0], do_handshake_on_connect=False
                )
                show(made)
                made.settimeout(seconds_left(until))
                made.do_handshake()
            made.settimeout(seconds_left(until))
            made.sendall(HELLO.pack(CALLS_MAGIC, session, token))
            magic, answer, _ = ANSWER.unpack(received(made, ANSWER.size, until))
            if magic != CALLS_MAGIC or answer != Welcome.COME_IN:
                raise OSError("the node takes no calls of this session there")
        except BaseException:
            made.close()
            raise
        return made

    return connect
