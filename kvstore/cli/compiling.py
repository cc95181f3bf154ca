"""What is compiled before a process serves: it is said where that takes long, and a signal ends it.

A signal ends the process here and now. What its handler raised would be lost where it meets one of
the compiler's own callbacks, and the process would serve after all; nothing is to be tidied up yet.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

QUIET_SECONDS = 2.0  # longer than it takes to load what was compiled before


def compile_first(what: str, compiled: Callable[[], None]) -> None:
    """Return once all is compiled. Whoever serves afterwards says anew what signals do."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    with ThreadPoolExecutor(1) as aside:  # signals come to this thread, and the compiler is long
        compiling = aside.submit(compiled)
        if not wait([compiling], QUIET_SECONDS).done:
            print(f"compiling {what}: about a minute, the first time", file=sys.stderr, flush=True)
        compiling.result()


def _end(number: int, _: object) -> None:
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(128 + number)
