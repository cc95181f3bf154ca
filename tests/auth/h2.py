"""HTTP/2 by hand: enough of it to misbehave in ways that gRPC's own client never would."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4
_END_HEADERS = 0x4
_CANCEL = 8


def frame(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def greeting() -> bytes:
    return PREFACE + frame(SETTINGS, 0, b"")


def call(stream: int, method: str, tenant: str) -> bytes:
    """The headers of a call whose message has not come."""
    headers = (
        *((":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "x")),
        *(("te", "trailers"), ("content-type", "application/grpc"), ("moonpool-tenant", tenant)),
    )
    block = b"".join(_literal(name, value) for name, value in headers)
    return frame(HEADERS, stream, block, _END_HEADERS)


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, stream, struct.pack(">I", _CANCEL))


def message(stream: int, announced: int, sent: bytes) -> bytes:
    """A message that is said to be `announced` bytes long, and what comes of it now."""
    return frame(DATA, stream, b"\0" + struct.pack(">I", announced) + sent)


def streams(count: int) -> Iterable[int]:
    return range(1, 2 * count, 2)


def connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


def closed(peer: socket.socket) -> bool:
    """Whether the other side has hung up; what it still said is read."""
    peer.setblocking(False)
    try:
        while peer.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _literal(name: str, value: str) -> bytes:
    """A header in no table and in no code of Huffman's (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(bytes([len(one)]) + one for one in (name.encode(), value.encode()))
