"""What a recorder promises, and what CUDA asks of whoever records: told to a fake of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from kvstore.engine.recording import Calls, CudaGraphs, Recorder
from tests.gpu import DEVICE


@pytest.fixture(params=["calls", "graphs"])
def recorder(request: pytest.FixtureRequest) -> Recorder:
    if request.param == "calls":
        return Calls(DEVICE)
    if DEVICE.type != "cuda":
        pytest.skip("there is no CUDA device")
    return CudaGraphs(DEVICE)


def test_what_is_run_again_reads_what_its_inputs_hold_by_then(recorder: Recorder) -> None:
    number = torch.zeros(1, device=DEVICE)
    doubled = recorder.record(lambda: 2 * number)
    squared = recorder.record(lambda: number * number)
    for value in (3.0, 5.0):
        number.fill_(value)
        assert doubled.replay().item() == 2 * value
        assert squared.replay().item() == value * value


class FakeCuda:
    """Writes down what is asked of CUDA; `broken` says in which call it fails."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self.streams = ["the caller's"]
        self.broken = ""
        fakes: dict[str, Any] = {
            "Stream": lambda place: "a side stream",
            "graph_pool_handle": lambda: f"memory {self._note('memory')}",
            "CUDAGraph": lambda: self,
            "device": self._device,
            "stream": self._stream,
            "synchronize": lambda: self._note("synchronize"),
            "graph": self._graph,
        }
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)

    def _note(self, what: str) -> int:
        self.lines.append(what)
        if what == self.broken:
            raise RuntimeError(f"{what} is not permitted")
        return len(self.lines)

    @contextmanager
    def _device(self, place: torch.device) -> Iterator[None]:
        self._note(f"on {place}")
        yield

    @contextmanager
    def _stream(self, stream: str) -> Iterator[None]:
        self.streams.append(stream)
        try:
            yield
        finally:
            self.streams = self.streams[:1]

    @contextmanager
    def _graph(
        self, graph: object, pool: str, stream: str, capture_error_mode: str
    ) -> Iterator[None]:
        assert graph is self
        # As torch's own: where it fails its stream is left the current one.
        self.streams.append(stream)
        self._note(f"begin in {pool} on {stream}, {capture_error_mode}")
        yield
        self._note("end")
        self.streams.pop()

    def replay(self) -> None:
        self._note("replay")

    def act(self) -> torch.Tensor:
        self._note(f"act on {self.streams[-1]}")
        return torch.ones(1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


RECORDED = [
    "on cuda:1",
    "synchronize",
    *["act on a side stream"] * 2,
    "begin in memory 1 on a side stream, thread_local",
    "act on a side stream",
    "end",
]


def test_it_is_warmed_up_and_recorded_on_a_stream_of_its_own_all_in_one_memory(
    cuda: FakeCuda,
) -> None:
    recorder = CudaGraphs(torch.device("cuda:1"))
    first, second = (recorder.record(cuda.act) for _ in range(2))
    assert cuda.lines == ["memory", *RECORDED, *RECORDED]
    made = first.replay()
    assert cuda.lines[-1] == "replay" and made is first.replay() is not second.replay()
    assert cuda.streams == ["the caller's"]


def test_what_a_graph_reads_lives_as_long_as_it(cuda: FakeCuda) -> None:
    read = torch.ones(1)
    alive = weakref.ref(read)
    recorded = CudaGraphs(torch.device("cuda:1")).record(partial(torch.add, read, 1))
    del read
    assert alive() is not None
    del recorded
    assert alive() is None


@pytest.mark.parametrize("call", RECORDED[1:])
def test_a_recording_that_fails_leaves_the_callers_stream(cuda: FakeCuda, call: str) -> None:
    recorder = CudaGraphs(torch.device("cuda:1"))
    cuda.broken = call
    with pytest.raises(RuntimeError, match="not permitted"):
        recorder.record(cuda.act)
    assert cuda.streams == ["the caller's"]
