"""Somebody whose answer over HTTP comes by drops."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection


@contextmanager
def saying(begin: bytes, drop: bytes = b"", count: int = 0) -> Iterator[HTTPConnection]:
    """Somebody who says this at once, and then so many drops."""

    def serve() -> None:
        with suppress(OSError), closing(listening.accept()[0]) as one:  # it may be hung up on
            one.recv(1 << 16)
            one.sendall(begin)
            for _ in itertools.repeat(None, count):
                time.sleep(0.05)
                one.sendall(drop)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield HTTPConnection(*listening.getsockname(), timeout=10.0)
        finally:
            thread.join()
