"""When a step's KV is stored: at once, or beside that step and the next, which go on to compute.

What fails to be stored fails alone: of that request nothing more is stored, others are, and the
engine hears of it when it settles. What is stored are tokens of a prompt that are computed: no step
writes them anew, and their pages are nobody else's before the engine has settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from kvstore.client.later import later
from kvstore.errors import KVStoreError

TOGETHER_BYTES = 64 << 20  # a bus is busy with them for a millisecond

Put = Callable[[Any], None]
"""Stores something once an event has come, or at once where that is None."""


class Storing(Protocol):
    """One engine's, called on its thread alone."""

    def layers(self, layer_bytes: int) -> int:
        """How many layers one put stores at most, of a step that computes so much of each."""

    def store(self, request_id: str, put: Put) -> None:
        """Have `put` store what the device has been told to compute so far."""

    @property
    def idle(self) -> bool:
        """Whether all that was to be stored has been."""

    def begin(self) -> None:
        """A step begins. Of one that was cut short nothing is stored behind this."""

    def stepped(self) -> None:
        """All of a step has been told: wait for what the one before it was to store."""

    def settle(self) -> dict[str, KVStoreError]:
        """Wait for all that was to be stored; the requests of which something failed."""

    def close(self) -> None:
        """After the last `settle`."""


class AtOnce:
    """For tensors that are written when the call that writes them returns."""

    def __init__(self, place: torch.device) -> None:
        self._failed: dict[str, KVStoreError] = {}

    def layers(self, layer_bytes: int) -> int:
        return 1

    def store(self, request_id: str, put: Put) -> None:
        if request_id not in self._failed:
            try:
                put(None)
            except KVStoreError as error:
                self._failed[request_id] = error

    @property
    def idle(self) -> bool:
        return True

    def begin(self) -> None:
        pass

    def stepped(self) -> None:
        pass

    def settle(self) -> dict[str, KVStoreError]:
        failed, self._failed = self._failed, {}
        return failed

    def close(self) -> None:
        pass


class Beside:
    """For a device that computes behind the engine's thread: on a thread and a stream of its own,
    so that one layer is copied while the next are computed."""

    def __init__(self, place: torch.device) -> None:
        self._threads = ThreadPoolExecutor(1, "moonpool-stores")
        self._inner = AtOnce(place)  # of that thread, but for `settle`, which waits for it
        self._before: list[Future[None]] = []  # of the step before
        self._under_way: list[Future[None]] = []  # of this one
        self._place, self._cuda = place, place.type == "cuda"
        # Its own, since what is moved waits for all that the mover's stream was told.
        self._stream = torch.cuda.Stream(place) if self._cuda else None

    def layers(self, layer_bytes: int) -> int:
        """To tell the device of a put takes the host a part of a millisecond, whatever it moves,
        and keeps the step's thread from telling it of more."""
        return max(1, TOGETHER_BYTES // layer_bytes)

    def store(self, request_id: str, put: Put) -> None:
        computed = None
        if self._cuda:
            computed = torch.cuda.Event()
            computed.record(torch.cuda.current_stream(self._place))

        def stored() -> None:
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                self._inner.store(request_id, lambda _: put(computed))

        begun = later(self._threads, stored)
        if begun is None:  # no thread can be had, so none is at work before it
            stored()
        else:
            self._under_way.append(begun)

    @property
    def idle(self) -> bool:
        return all(one.done() for one in (*self._before, *self._under_way))

    def begin(self) -> None:
        cut_short, self._under_way = self._under_way, []
        _over(cut_short)

    def stepped(self) -> None:
        before, self._before, self._under_way = self._before, self._under_way, []
        _over(before)

    def settle(self) -> dict[str, KVStoreError]:
        every = self._before + self._under_way
        self._before, self._under_way = [], []
        try:
            _over(every)
        finally:
            failed = self._inner.settle()
        return failed

    def close(self) -> None:
        self._threads.shutdown()


def evenly(layers: int, most: int) -> Iterator[range]:
    """Layers in groups of `most`, the last of what is left. Pure."""
    return (range(first, min(first + most, layers)) for first in range(0, layers, most))


def tapering(layers: int, most: int) -> Iterator[range]:
    """Layers in groups of up to `most`, and of half of what is left where that is less, but of a
    quarter of `most` at least: little is stored behind the last layer. Pure."""
    first = 0
    while first < layers:
        left = layers - first
        size = min(left, most, max(left // 2, most // 4, 1))
        yield range(first, first + size)
        first += size


def _over(under_way: list[Future[None]]) -> None:
    """Wait for all of them, whatever one of them meets, which is raised then."""
    for one in under_way:
        one.exception()
    for one in under_way:
        one.result()
