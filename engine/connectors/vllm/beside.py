"""A stream for threads that load beside vLLM's own, which computes on another.

Where nothing is said a thread tells a device things on its default stream. vLLM may compute there,
and then each move of a load would wait until every step is done that was told by then, not those
alone which had the pages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def beside(device: Any) -> Callable[[], AbstractContextManager[Any]]:
    """For a thread to enter: its stream on this device is that one until it leaves. On a CPU, where
    calls return when all is done, nothing."""
    if device.type != "cuda":
        return nullcontext
    stream = torch.cuda.Stream(device)
    return lambda: torch.cuda.stream(stream)
