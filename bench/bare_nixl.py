"""A process that does nothing but move bytes with NIXL, for the bench that is held against it.

It has memory of the kind that a node's blocks lie in, touched and registered once, and a transfer
made once: told by a byte, it posts that, waits until it is done and answers how many seconds that
took it.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from typing import Self

import numpy as np
import numpy.typing as npt

from kvstore.memory.arena import Arena
from kvstore.transfer.frames import Segment
from kvstore.transfer.ucx_agent import Agent, shared_agent
from kvstore.transfer.ucx_memory import Registration

SECONDS = struct.Struct("<d")
ABOUT = struct.Struct("<QQQQQ16s")  # pieces, bytes of one, device, address, bytes of the blob, name
WAIT_SECONDS = 60.0


class BareNixl:
    """The target's side: `count` pieces of `size` bytes arrive in `target`, one after the other."""

    def __init__(self, target: npt.NDArray[np.uint8], count: int, size: int) -> None:
        self._agent = shared_agent()
        self._region = self._agent.register(target)
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(WAIT_SECONDS)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "bench.bare_nixl", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )
        region = self._region
        where = (region.registration.device, region.address, len(region.blob), self._agent.name)
        self._socket.sendall(ABOUT.pack(count, size, *where) + region.blob)
        self._answer()

    def transfer(self) -> float:
        """Seconds that one transfer of it all takes whoever moves it."""
        self._socket.sendall(b"\1")
        return self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        try:
            self._child.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._agent.forget(self._region)

    def _answer(self) -> float:
        said = self._socket.recv(SECONDS.size, socket.MSG_WAITALL)
        if len(said) < SECONDS.size:
            raise RuntimeError("the bare NIXL process ended")
        seconds: float = SECONDS.unpack(said)[0]
        return seconds


def main() -> None:
    """The mover's side."""
    peer = socket.socket(fileno=int(sys.argv[1]))
    said = peer.recv(ABOUT.size, socket.MSG_WAITALL)
    count, size, device, address, blob_bytes, name = ABOUT.unpack(said)
    blob = peer.recv(blob_bytes, socket.MSG_WAITALL)
    agent = Agent()
    source = Arena.create(count * size).bytes
    source[:] = np.frombuffer(np.random.default_rng(0).bytes(count * size), np.uint8)
    mine = agent.register(source)
    theirs = Registration(device, Segment.DRAM)
    agent.load(name, blob)
    at = size * np.arange(count, dtype=np.uint64)
    runs = np.stack([at + mine.address, at + address, np.full(count, size)], axis=1)
    moving = agent.begin("WRITE", mine.registration, name, theirs, runs.astype(np.uint64))
    peer.sendall(SECONDS.pack(0.0))
    while peer.recv(1):
        started = time.perf_counter()
        done = moving.post()
        while not done:
            done = moving.done()
        peer.sendall(SECONDS.pack(time.perf_counter() - started))
    moving.end()
    agent.drop(name)


if __name__ == "__main__":
    main()
