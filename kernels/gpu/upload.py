"""What kernels are told of a call, small arrays of the host, to where they read them: in one copy,
and without waiting for what the stream was told before.

From memory that is not pinned CUDA's copy, as torch makes it, waits for all of the stream: whoever
tells a device of one piece while it moves another would wait for that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

APART = 16  # words at whose multiples each of them begins: alike aligned in every call


def sent(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy, for whatever the current stream is told next; of a type that torch has too."""
    here = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return here.to(device, copy=True)
    # Pinned memory torch keeps until the copy has been made, whatever becomes of the tensor.
    return here.pin_memory().to(device, non_blocking=True)


def uploaded(arrays: Sequence[NDArray[Any]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Of each a copy, int64 and flat, for whatever the current stream is told next."""
    firsts = [0, *itertools.accumulate(-(-one.size // APART) * APART for one in arrays)]
    # Pinned memory torch keeps until the copy has been made, whatever becomes of the tensor.
    host = torch.empty(firsts[-1], dtype=torch.int64, pin_memory=device.type == "cuda")
    words = host.numpy()
    for first, one in zip(firsts, arrays, strict=False):
        words[first : first + one.size] = one.ravel()
    there = host.to(device, non_blocking=True)
    return tuple(
        there[first : first + one.size] for first, one in zip(firsts, arrays, strict=False)
    )
