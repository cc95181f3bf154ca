"""Calls of which nothing is heard any more: they are hung up on, for whoever was called may be gone
with its host, which then tells nobody. How long an answer takes in all is no matter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.errors import KVStoreError, Unavailable
from kvstore.gateway.caller import Cancels
from kvstore.rpc.threads import begin_thread

_RETRY_MS = 1_000


class Heard:
    """When something was heard last. For the thread that hears it."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def again(self) -> None:
        self.at = time.monotonic()


@contextmanager
def ended_by_silence(address: str, call: Cancels, seconds: float) -> Iterator[Heard]:
    """Within it the call is cancelled once nothing was heard for so long. What it then fails by is
    raised as `Unavailable`, which says why; so is that nobody can be had to watch it."""
    heard, over, silent = Heard(), threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(max(0.0, left := heard.at + seconds - time.monotonic())):
            if left <= 0:
                silent.set()
                call.cancel()
                return

    begin_thread(watch, f"silence {address}", address)
    try:
        yield heard
    except KVStoreError as error:
        if silent.is_set():
            text = f"{address}: nothing was heard of it for {seconds:.0f} s"
            raise Unavailable(text, _RETRY_MS) from error
        raise
    finally:
        over.set()
