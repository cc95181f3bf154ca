"""A data connection's stream and the bare socket at its other end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.transfer.stream import DataStream

Pair = tuple[DataStream, socket.socket]
HASHED_TO_ZERO = bytes.fromhex("42d568e138d727ff")  # by xxh3-64
STILL_SECONDS = 0.5  # that a stream allows whose peer is to stand still


@contextmanager
def connected(stall_seconds: float) -> Iterator[Pair]:
    listening = socket.create_server(("127.0.0.1", 0))
    made = DataStream.connect(listening.getsockname(), stall_seconds)
    peer, _ = listening.accept()
    listening.close()
    peer.settimeout(10.0)
    yield made, peer
    made.close()
    peer.close()
