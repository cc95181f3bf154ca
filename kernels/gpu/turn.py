"""Streams of their own for moves of one device, behind whatever their callers' streams were told.

Any thread may take a turn; one has it at a time. When a turn ends nothing of it is under way. There
are some, so that kernels work on one piece while the bus moves another: in one order a bus would
wait for them, and for whoever tells them. In a turn torch's inference mode is off, whatever the
caller's is: memory that is made in one turn is used in others, and what is made in that mode may be
written to in that mode alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

STREAMS = 3  # of one the bus moves a piece, of one kernels do, and one is told of the next


class Turn:
    """Of one device. On a CPU, where tests run kernels, all is done when it is told."""

    def __init__(self, device: torch.device) -> None:
        self._device, count = device, STREAMS if device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]
        self._moving = threading.Lock()
        # Of the turn that is taken: what its caller had told, and which streams wait for that.
        self._told: Any = None
        self._begun: list[int] = []

    @contextmanager
    def taken(self) -> Iterator[None]:
        """In it the first of the streams is current, until `use` says which is."""
        with self._moving, torch.inference_mode(mode=False), torch.no_grad():
            if not self._streams:
                yield
                return
            with torch.cuda.device(self._device):
                callers = torch.cuda.current_stream(self._device)
                self._told, self._begun = callers.record_event(), []
                try:
                    self.use(0)
                    yield
                finally:
                    torch.cuda.set_stream(callers)
                    for number in self._begun:
                        self._streams[number].synchronize()

    def use(self, number: int) -> None:
        """That stream is current from now on; for whoever has the turn."""
        if not self._streams:
            return
        stream = self._streams[number]
        if number not in self._begun:
            stream.wait_event(self._told)
            self._begun.append(number)
        torch.cuda.set_stream(stream)


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
