"""When a prompt's turn comes among those that wait: as if it had come some time later than it did,
or sooner.

A conductor says `priority_ms` and `aging`, and the least priority_ms + aging * arrival is first.
Divided by aging that is a moment: the arrival, and a delay of priority_ms / aging behind it. Told
so, prompts of other agings, and of none, stand in one line with the others. No delay is longer than
an hour: whoever has waited for two is overtaken by nobody who comes then.
"""

from __future__ import annotations

import math

from .errors import BadRequest

DELAY_SECONDS_MAX = 3_600.0  # and this much forward


def due(arrival: float, priority_ms: float, aging: float) -> float:
    """The moment, in seconds of the clock that `arrival` is of. Raises `BadRequest` for numbers
    that no conductor says."""
    if not (math.isfinite(priority_ms) and math.isfinite(aging) and aging >= 0):
        raise BadRequest(
            f"turn: priority_ms {priority_ms} and aging {aging}: finite numbers are wanted, and an "
            "aging of 0 or more"
        )
    delay = 1e-3 * priority_ms / aging if aging else 0.0
    return arrival + min(max(delay, -DELAY_SECONDS_MAX), DELAY_SECONDS_MAX)
