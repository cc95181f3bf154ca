"""How scarce time is, of engines and of links: what others wait for a second of it that is taken.

It is reckoned by how many had work lately, as in a queue: a fleet that idles charges nothing for
what a prompt takes, and a busy one charges so much that only what is worth it is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .fleet import SIZES, busy_for
from .inner import inner

LOAD_MAX = 20.0  # above it all is lost anyway
BUSY_SECONDS = 60.0  # over which the share of busy engines is a mean


@inner
def busy_share(fleet: Any, now: Any) -> Any:
    """Of the engines that prefill, how many have work."""
    some, busy, engines = 0, 0, fleet.engines
    for one in range(len(engines)):
        if engines[one].prefills:
            some += 1
            busy += busy_for(engines[one], now) > 0.0 or fleet.lines[SIZES - 1, one].waiting > 0
    return busy / max(1, some)


@inner
def lately_busy(fleet: Any, busy: Any, since: Any, now: Any) -> Any:
    """Of the engines that prefill, the share that has had work lately: `busy` is what it was at
    the moment `since`. A burst of a second does not make time scarce."""
    kept = np.exp(-max(0.0, now - since) / BUSY_SECONDS)
    return busy * kept + (1.0 - kept) * busy_share(fleet, now)


@inner
def scarcity(busy: Any) -> Any:
    """Seconds that those who come later wait for a second of an engine's time: an M/M/1 queue's,
    u / (1 - u), kept finite."""
    return min(busy / (1.05 - busy), LOAD_MAX)
