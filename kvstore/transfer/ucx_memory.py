"""Memory that an agent shows others: of the host, or of a GPU.

NIXL finds a move's other end by the kind of memory, a device's number and an address, and a node
knows what it was once told for as long as it knows the agent. So that it never takes what lies
somewhere now for what lay there before, memory of the host has another number each time that it is
registered. Of a GPU's memory the number is CUDA's own: it stays registered, and alive, until the
process ends, so that nothing else ever lies there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.transfer.frames import Segment


@dataclass(frozen=True, slots=True, eq=False)
class OnGpu:
    """Memory of a GPU of this process."""

    address: int
    nbytes: int
    device: int  # CUDA's number
    owner: Any = field(repr=False)  # keeps it alive


Shown: TypeAlias = npt.NDArray[np.uint8] | OnGpu


class Registration(NamedTuple):
    """What NIXL finds memory of an agent by, beside its address."""

    device: int
    segment: Segment


@dataclass(eq=False)
class Region:
    """Memory that is registered, and what others need in order to reach it."""

    address: int
    size: int
    registration: Registration
    blob: bytes = field(repr=False)
    uses: int = 1
    descriptors: Any = field(default=None, repr=False)
    owner: Any = field(default=None, repr=False)  # keeps the memory alive


def place(memory: Shown) -> tuple[int, int]:
    """Where it lies, and its bytes."""
    address = memory.address if isinstance(memory, OnGpu) else memory.ctypes.data
    return address, memory.nbytes
