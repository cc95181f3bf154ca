"""A process that a test stops or kills: `python -m tests.faults.child HOW ...`; says when ready.

write ADDRESS NUMBER          reserves a prompt's block and writes its memory again and again
read ADDRESS NUMBER           pins a prompt's block and holds it
scribble SOCKET TOKEN BYTES OFFSET    writes a slot through another process's session
"""

from __future__ import annotations

import mmap
import socket
import sys
import time

from kvstore.memory.arena import HELLO, Arena
from tests.nodes import LAYOUT, Caller, mapped, prompt

BOTH = mmap.PROT_READ | mmap.PROT_WRITE


def scribble(arena: Arena, offset: int) -> None:
    """Write every byte of the slot's payload, in turn with another value, for ever."""
    start, end = offset + LAYOUT.head_bytes, offset + LAYOUT.slot_bytes
    value = 0
    while True:
        value = value % 255 + 1
        arena.bytes[start:end] = value


def main(how: str, *given: str) -> None:
    if how == "scribble":
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(given[0])
        peer.sendall(bytes.fromhex(given[1]))
        _, descriptors, _, _ = socket.recv_fds(peer, HELLO.size, 1)
        arena = Arena.map(descriptors[0], int(given[2]), BOTH)
        print("ready", flush=True)
        scribble(arena, int(given[3]))
    caller, blocks = Caller(given[0]), prompt(int(given[1]))
    with mapped(caller) as arena:
        if how == "write":
            offset = caller.reserve(blocks).slot_offsets[0]
            print("ready", flush=True)
            scribble(arena, offset)
        caller.ask("Open", **caller.about(blocks))
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
