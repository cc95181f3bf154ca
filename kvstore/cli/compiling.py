"""What is compiled first: it is said where that takes long. Of what serves, a signal ends it.

A signal ends the process here and now. What its handler raised would be lost where it meets one of
the compiler's own callbacks, and the process would serve after all; nothing is to be tidied up yet.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

QUIET_SECONDS = 2.0  # longer than it takes to load what was compiled before
STILL_SECONDS = 15.0  # between one word that it goes on and the next
SAYS = (b"compiling ", b"still compiling ")  # so all that is said of it begins


def compile_first(what: str, compiled: Callable[[], None]) -> None:
    """Return once all is compiled. Whoever serves afterwards says anew what signals do."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    with ThreadPoolExecutor(1) as aside:  # signals come to this thread, and the compiler is long
        compiling = aside.submit(compiled)
        if not wait([compiling], QUIET_SECONDS).done:
            with said_compiling(what):
                wait([compiling])
        compiling.result()


@contextmanager
def said_compiling(what: str) -> Iterator[None]:
    """Within it this is compiled, which is said, and now and then how long it has been."""
    begun, over = time.monotonic(), threading.Event()

    def go_on() -> None:
        while not over.wait(STILL_SECONDS):
            _say(f"still compiling {what}, {time.monotonic() - begun:.0f} s")

    _say(f"compiling {what}: one to several minutes, once on this machine")
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(number: int, _: object) -> None:
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(128 + number)
