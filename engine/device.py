"""Where an engine computes: the CPU, or one CUDA device; what is asked for, or a refusal.

The model's code is the same for both. Beside the place of its tensors a device has its own way to
attend over pages, and of storing what a step computes; and where telling it of each kernel takes
longer than the kernel, a way of recording decode steps.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kvstore.errors import ConfigError

from .attention import Attend, Attention
from .batch import Batch, Send
from .config import ModelConfig
from .decode_inputs import DecodeRows
from .recording import Calls, CudaGraphs, Recorder
from .storing import AtOnce, Beside, Storing

KINDS = ("cpu", "cuda")
Fetch = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recording:
    """`attention` is asked once for each recording, whose rows are written anew for each step;
    `recorder` once an engine."""

    attention: Callable[[DecodeRows, ModelConfig], Attend]
    recorder: Callable[[torch.device], Recorder]


@dataclass(frozen=True, slots=True)
class Device:
    """`attention` is asked once a step; `storing` once an engine; `send` brings it what a step
    is told, without waiting for the step before; `fetch` brings what was computed to the host, and
    meanwhile lets other threads tell the device of more."""

    place: torch.device
    attention: Callable[[Batch, ModelConfig], Attend]
    storing: Callable[[torch.device], Storing]
    recording: Recording | None = None  # None: no step is recorded
    send: Send = torch.from_numpy
    fetch: Fetch = torch.Tensor.cpu

    @classmethod
    def named(cls, name: str) -> Device:
        """`cpu`, `cuda` or `cuda:N`. Raises `ConfigError` where there is no such device."""
        try:
            place = torch.device(name)
        except RuntimeError:
            place = torch.device("meta")
        if place.type not in KINDS:
            raise ConfigError(f"--device {name}: is one of cpu, cuda, cuda:N")
        if place.type == "cpu":
            return CPU
        if not torch.cuda.is_available():
            raise ConfigError(
                f"--device {name}: torch {torch.__version__} finds no CUDA device here; "
                "--device cpu computes without one"
            )
        count = torch.cuda.device_count()
        if place.index is not None and place.index >= count:
            raise ConfigError(f"--device {name}: there are {count}, cuda:0 to cuda:{count - 1}")
        return cls.with_kernels(torch.device("cuda", place.index or 0))

    @classmethod
    def with_kernels(cls, place: torch.device) -> Device:
        """One whose pages are read by `kernels.gpu`, and stored while the step goes on."""
        try:
            # Late: Triton is for machines with a GPU.
            from .paged_attention import PagedAttention, StandingAttention, fetched, sent
        except ImportError as error:
            raise ConfigError(
                f"--device {place.type}: {error.name or error} is missing: "
                "pip install 'moonpool[gpu]'"
            ) from error
        recorder = CudaGraphs if place.type == "cuda" else Calls
        recording, send = Recording(StandingAttention, recorder), partial(sent, device=place)
        return cls(place, PagedAttention, Beside, recording, send, fetched)

    @property
    def kind(self) -> str:
        """What it is called, so that others may be known to be the same."""
        if self.place.type == "cuda":
            return torch.cuda.get_device_name(self.place)
        return f"{_processor()}, {torch.get_num_threads()} threads"

    def current(self) -> AbstractContextManager[Any]:
        """Inside this it is the thread's own: Triton launches on that, wherever the tensors are."""
        return torch.cuda.device(self.place) if self.place.type == "cuda" else nullcontext()

    def without_graphs(self) -> Device:
        """The same, but that each step is told anew."""
        return replace(self, recording=None)


def _processor() -> str:
    """As Linux names it, of a machine of another kind no more than which instructions it has."""
    with open("/proc/cpuinfo") as file:
        named = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
        return next(named, platform.machine())


CPU = Device(torch.device("cpu"), Attention, AtOnce)
