"""What a process does for as long as it runs, beside what it is called for: it must not end unseen.

A task that nobody awaits keeps its exception to itself, and what it did is off until a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kvstore.clock import Clock

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0  # before it is begun again


async def kept(
    name: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    clock: Clock,
    failed: Callable[[], None] = lambda: None,
) -> None:
    """Do it until cancelled, or until there is no more to do. Where it ends by what nobody foresaw
    that is logged, `failed` is told, and it is begun again."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("%s ended in a way that nobody foresaw; it is begun again", name)
        failed()
        await clock.sleep(PAUSE_SECONDS)
