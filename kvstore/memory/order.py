"""The order in which a process stores to memory that others map, and reads it, made theirs too.

x86-64 keeps it by itself; aarch64 does not, and a reader there might see that a strip is written
before its bytes are. Compiled loops say so for themselves (`kernels.memory`); what Python stores
and reads there has a fence in between.
"""

from __future__ import annotations

import threading


def fence() -> None:
    """What this thread has read and stored so far it has before whatever follows.

    Nobody else knows the lock: what counts is that it is given back and then taken. Nothing passes
    a release and the acquire behind it (Arm Architecture Reference Manual, barrier-ordered-before).
    """
    lock = threading.Lock()
    for _ in range(2):
        with lock:
            pass
