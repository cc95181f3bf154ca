"""What a server answers to one GET, until a deadline: whatever part comes by drops, status line and
headers as well, no drop of it moves that. And no more is taken than is wanted."""

from __future__ import annotations

import http.client
import io
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from kvstore.address import named
from kvstore.limits import KiB

_PART_BYTES = 64 * KiB


def answer_of(
    calling: http.client.HTTPConnection, path: str, seconds: float, bytes_max: int
) -> tuple[int, bytes]:
    """Its status, and its body if that is 200; of a longer one a byte more than `bytes_max`. Raises
    `TimeoutError`, what else sockets raise, and `http.client.HTTPException`."""
    with answering(calling, path, seconds) as answer:
        body = bytearray()
        if answer.status == http.client.OK:
            while (left := bytes_max + 1 - len(body)) and (
                part := answer.read1(min(left, _PART_BYTES))
            ):
                body += part
        return answer.status, bytes(body)


@contextmanager
def answering(
    calling: http.client.HTTPConnection, path: str, seconds: float
) -> Iterator[http.client.HTTPResponse]:
    """The same, to be read within it. Raises as `answer_of` does, and reading it does too."""
    deadline = time.monotonic() + seconds
    with closing(calling):
        with named():
            calling.connect()
        calling.request("GET", path)
        source: Any = Until(calling.sock, deadline)
        with closing(http.client.HTTPResponse(source, method="GET")) as answer:
            answer.begin()
            yield answer


class Until(io.RawIOBase):
    """What a socket says until then. An `HTTPResponse` takes it for the socket. Whoever reads what
    comes part by part puts the deadline off with each."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock, self.deadline = sock, deadline

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return int(self._sock.recv_into(buffer))
