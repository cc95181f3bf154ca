"""The other side of bench `tcp`: a process that sends memory of its own over plain sockets.

    python -m bench.plain_sockets STREAMS BYTES   ->  prints its port; serves until stdin ends

Each connection is asked with one byte and answers with its share of the bytes, by `sendall` in
pieces of 1 MiB; nobody is asked whether they may be had, and nothing is verified.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from kvstore.limits import MiB

ROOT = Path(__file__).resolve().parent.parent
STALL_SECONDS = 60.0


class PlainSockets:
    """The receiving side: as many connections as streams, each with a thread and its share."""

    def __init__(self, port: int, streams: int, target: npt.NDArray[np.uint8]) -> None:
        self._shares = np.array_split(target, streams)
        self._threads = ThreadPoolExecutor(streams)
        self._sockets = []
        for _ in range(streams):
            made = socket.create_connection(("127.0.0.1", port), STALL_SECONDS)
            made.settimeout(None)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(made)

    def fetch(self) -> None:
        """Fill the target once."""
        list(self._threads.map(_receive, self._sockets, self._shares))

    def fetch_hashed(self) -> None:
        """The same, and hash each piece once it is there, held against nothing."""
        list(self._threads.map(_receive_hashed, self._sockets, self._shares))

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._threads.shutdown()


@contextmanager
def plain_sockets(streams: int, target: npt.NDArray[np.uint8]) -> Iterator[PlainSockets]:
    """A sending process of as many bytes as the target has, and the connections to it."""
    command = [sys.executable, "-m", "bench.plain_sockets", str(streams), str(target.nbytes)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None and process.stdin is not None
        receiving = PlainSockets(int(process.stdout.readline()), streams, target)
        try:
            yield receiving
        finally:
            receiving.close()
            process.stdin.close()
    finally:
        process.wait(STALL_SECONDS)
        process.stdout.close()


def _receive(connected: socket.socket, share: npt.NDArray[np.uint8]) -> None:
    for _ in _pieces(connected, share):
        pass


def _receive_hashed(connected: socket.socket, share: npt.NDArray[np.uint8]) -> None:
    for piece in _pieces(connected, share):
        xxhash.xxh3_64_intdigest(piece)


def _pieces(connected: socket.socket, share: npt.NDArray[np.uint8]) -> Iterator[memoryview]:
    """Ask for a share, and yield each piece of it once it is there."""
    connected.sendall(b"?")
    for first in range(0, len(share), MiB):
        piece = left = share[first : first + MiB].data
        while len(left):
            got = connected.recv_into(left)
            if not got:
                raise ConnectionResetError("the sending process is gone")
            left = left[got:]
        yield piece


def _serve(connected: socket.socket, share: npt.NDArray[np.uint8]) -> None:
    while connected.recv(1):
        for first in range(0, len(share), MiB):
            connected.sendall(share[first : first + MiB].data)


def main() -> None:
    streams, size = map(int, sys.argv[1:])
    source = np.frombuffer(np.random.default_rng(0).bytes(size), np.uint8)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    for share in np.array_split(source, streams):
        connected, _ = listening.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(connected, share), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
