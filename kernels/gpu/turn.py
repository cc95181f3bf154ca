"""A stream of its own for moves of one device, behind whatever their callers' streams were told.

Any thread may take a turn; one has it at a time. When a turn ends nothing of it is under way. In
it torch's inference mode is off, whatever the caller's is: memory that is made in one turn is used
in others, and what is made in that mode may be written to in that mode alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Turn:
    """Of one device. On a CPU, where tests run kernels, all is done when it is told."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._moving = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[None]:
        with self._moving, torch.inference_mode(mode=False), torch.no_grad():
            if self._stream is None:
                yield
                return
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                self._stream.synchronize()


class Mark:
    """A point of the stream that is current when it is set, to be waited for."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def set(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Until all that came before the last `set` is done."""
        if self._event is not None:
            self._event.synchronize()
