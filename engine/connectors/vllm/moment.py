"""When a device has done what it was told so far, by its own clock.

A GPU works behind the calls that tell it what to do: the time these take says nothing of its own.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class Moment:
    """Of the calling thread's stream. On a CPU, where calls return when all is done, it is now."""

    def __init__(self, device: Any) -> None:
        self._event: Any = None
        self._at = time.monotonic()
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record(torch.cuda.current_stream(device))

    @property
    def past(self) -> bool:
        return self._event is None or bool(self._event.query())

    def seconds_after(self, earlier: Moment) -> float:
        """Of two moments of one stream that are past."""
        if self._event is None:
            return self._at - earlier._at
        return float(earlier._event.elapsed_time(self._event)) / 1e3
