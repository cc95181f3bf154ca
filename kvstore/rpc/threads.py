"""Threads for a stream over gRPC, looked for before it is begun.

gRPC starts a thread of its own for a channel's first stream. Where the system has none left the
call is under way all the same and nobody hears of it; and whoever closes its channel, or lets go of
it, waits for that thread for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvstore.errors import Unavailable

# gRPC's own and its caller's, and some to spare: others start threads at the same time, and the
# kernel counts one for a moment yet that has ended.
_LOOKED_FOR = 8


@contextmanager
def threads_for(server: str) -> Iterator[None]:
    """Within it a stream to a server is begun, and the thread that reads or writes it. Raises
    `Unavailable` where threads cannot be had: before anything is begun, unless others take the last
    of them meanwhile."""
    try:
        _look()
        yield
    except RuntimeError as error:
        raise Unavailable(f"no thread can be had for a stream to {server}: {error}") from error


def _look() -> None:
    over, begun = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(_LOOKED_FOR):
            one = threading.Thread(target=over.wait, daemon=True)
            one.start()
            begun.append(one)
    finally:
        over.set()
        for one in begun:
            one.join()


def begin_thread(run: Callable[[], None], name: str, server: str) -> None:
    """Run it in a thread of its own, which nobody waits for. Raises `Unavailable` where none can be
    had: nothing is begun then."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise Unavailable(f"no thread can be had for a call to {server}: {error}") from error
