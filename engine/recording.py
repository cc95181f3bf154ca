"""How a step is recorded once and run again: on CUDA as a graph, elsewhere by the same calls.

What is recorded reads its inputs where they lay when it was: whoever runs it again writes them
there first. So it may neither ask anything of the device nor bring it anything while it runs. A
graph's own memory is kept for as long as it is; all graphs of a recorder share it, since no two of
them run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

Act = Callable[[], torch.Tensor]
WARM_RUNS = 2  # compile kernels and have libraries take their memory, which no recording may


class Recorded(Protocol):
    """Something that can be run again."""

    def replay(self) -> torch.Tensor:
        """What it gives for what its inputs hold now. Stream-ordered; it holds until anything of
        the same recorder is run again."""


class Recorder(Protocol):
    """One engine's."""

    def record(self, act: Act) -> Recorded:
        """May run `act` on what its inputs hold now. Raises `RuntimeError` where the device cannot
        record it, and then has kept nothing."""


class Calls:
    """Where there is nothing to record with: the same calls, made again."""

    def __init__(self, place: torch.device) -> None:
        pass

    def record(self, act: Act) -> Recorded:
        return _Called(act)


@dataclass(frozen=True, slots=True)
class _Called:
    replay: Act


class CudaGraphs:
    """CUDA graphs of one device."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._stream = torch.cuda.Stream(place)  # the default one cannot record
        self._memory = torch.cuda.graph_pool_handle()

    def record(self, act: Act) -> Recorded:
        graph = torch.cuda.CUDAGraph()
        # The outer `stream` is what puts the caller's back where a recording fails half-way.
        with torch.cuda.device(self._place), torch.cuda.stream(self._stream):
            torch.cuda.synchronize()  # what the caller's stream was told comes first
            for _ in range(WARM_RUNS):
                act()
            with torch.cuda.graph(
                graph,
                pool=self._memory,
                stream=self._stream,
                # Of other threads' calls, such as those that pin memory, none is part of it.
                capture_error_mode="thread_local",
            ):
                made = act()
        return _Graph(graph, made, act)


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    made: torch.Tensor
    act: Act  # a graph knows addresses alone: what it reads lives as long as this

    def replay(self) -> torch.Tensor:
        self.graph.replay()
        return self.made
