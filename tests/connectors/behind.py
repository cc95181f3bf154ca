"""vLLM's stream on a GPU; and, where there is none, one that stands for it: what it is told is done
when somebody waits for it, and not before. So a move that waits for too little sees stale pages,
and one that waits for nothing behind it is seen to.

Of CUDA's streams and events that stand-in has what the code under test calls, and no more. A stream
beside vLLM's is never behind: what it is told is done at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.gpu import DEVICE

GPU = DEVICE.type == "cuda"
SLOW_CYCLES = 20_000_000  # some 10 ms of an H100: far more than it takes to launch a kernel
LIKE_CUDA: Any = SimpleNamespace(type="cuda")


class Stream:
    """Of a stand-in: tasks that wait for somebody to wait for them."""

    def __init__(self, *_: object) -> None:
        self._tasks: list[Callable[[], object]] = []
        self._done, self._doing = 0, threading.RLock()

    def tell(self, task: Callable[[], object]) -> None:
        self._tasks.append(task)

    @property
    def told(self) -> int:
        return len(self._tasks)

    @property
    def done(self) -> int:
        return self._done

    def synchronize(self, until: int | None = None) -> None:
        with self._doing, torch.inference_mode():
            last = len(self._tasks) if until is None else until
            while self._done < last:
                self._tasks[self._done]()
                self._done += 1

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.synchronize()


class Event:
    """Of a stand-in."""

    def __init__(self, **_: object) -> None:
        self._stream, self._at = Stream(), 0

    def record(self, stream: Stream) -> None:
        self._stream, self._at = stream, stream.told

    def synchronize(self) -> None:
        self._stream.synchronize(self._at)

    def query(self) -> bool:
        return self._stream.done >= self._at


class Computing:
    """What vLLM's worker tells its device, in order: on the default stream or one of its own."""

    def __init__(self, own: bool, default: Any) -> None:
        self._stream: Any = default
        if own:
            self._stream = torch.cuda.Stream() if GPU else Stream()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Of this thread's calls, as vLLM makes them."""
        with torch.cuda.stream(self._stream), torch.inference_mode():
            yield

    def tell(self, task: Callable[[], object], slow: int = 0) -> None:
        """`slow`: how often a GPU waits before, some time each."""
        if not GPU:
            self._stream.tell(task)
            return
        for _ in range(slow):
            torch.cuda._sleep(SLOW_CYCLES)
        task()

    def held(self) -> Callable[[], object]:
        """Have it do nothing until what this returns is called; a GPU, for a while."""
        if GPU:
            self.tell(int, slow=10)
            return int
        go = threading.Event()
        self.tell(go.wait)
        return go.set

    def captured(self, task: Callable[[], None]) -> Callable[[], None]:
        """As a CUDA graph; where there are none, itself."""
        if not GPU:
            return task
        task()  # what is loaded or allocated once is, before
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            torch.cuda._sleep(SLOW_CYCLES)
            task()
        return graph.replay  # type: ignore[no-any-return]

    def moment(self) -> Any:
        """When all is done that it was told so far: an event."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def finish(self) -> None:
        self._stream.synchronize()


def default_stream(change: pytest.MonkeyPatch, worker: Any, cache: Any) -> Any:
    """The device's. Where there is no GPU, the kernels' and the connector's own code takes this
    process for one: `worker` is that module of the connector's, and `cache` its `GroupCache`."""
    if GPU:
        return torch.cuda.default_stream(DEVICE)
    from kvstore.kernels.gpu import turn

    default, mine = Stream(), threading.local()

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        before, mine.stream = getattr(mine, "stream", default), stream
        try:
            yield
        finally:
            mine.stream = before

    change.setattr(torch.cuda, "Stream", Stream)
    change.setattr(torch.cuda, "Event", Event)
    change.setattr(torch.cuda, "current_stream", lambda *_: getattr(mine, "stream", default))
    change.setattr(torch.cuda, "stream", entered)
    change.setattr(torch.cuda, "set_stream", partial(setattr, mine, "stream"))
    change.setattr(torch.cuda, "device", lambda _: nullcontext())
    real_turn, told = turn.Turn.__init__, cache.told
    tensors = (SimpleNamespace(is_cuda=True, device=LIKE_CUDA),)
    like_cuda: Any = SimpleNamespace(_tensors=tensors)
    change.setattr(turn.Turn, "__init__", lambda self, _: real_turn(self, LIKE_CUDA))
    change.setattr(cache, "told", lambda _: told(like_cuda))
    beside: Callable[[Any], Callable[[], AbstractContextManager[Any]]] = worker.beside
    change.setattr(worker, "beside", lambda _: beside(LIKE_CUDA))
    return default
