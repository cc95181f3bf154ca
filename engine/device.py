"""Where an engine computes: the CPU, or one CUDA device; what is asked for, or a refusal.

The model's code is the same for both. Beside the place of its tensors a device has its own way to
attend over pages, and of storing what a step computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvstore.errors import ConfigError

from .attention import Attend, Attention
from .batch import Batch
from .config import ModelConfig
from .storing import AtOnce, Beside, Storing

KINDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Device:
    """`attention` is asked once a step; `storing` once an engine."""

    place: torch.device
    attention: Callable[[Batch, ModelConfig], Attend]
    storing: Callable[[torch.device], Storing]

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
            from .paged_attention import PagedAttention  # late: Triton is for machines with a GPU
        except ImportError as error:
            raise ConfigError(
                f"--device {place.type}: {error.name or error} is missing: "
                "pip install 'moonpool[gpu]'"
            ) from error
        return cls(place, PagedAttention, Beside)


CPU = Device(torch.device("cpu"), Attention, AtOnce)
