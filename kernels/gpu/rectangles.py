"""Runs of bytes that are alike and equally far apart, between a device and host memory that it
knows: all in one call (CUDA Driver API, "Memory Management": cuMemcpy2DAsync).

To tell a device of a copy takes the host some 30 us, and the bus rests for 5 between two of them.
Blocks whose slots lie next to each other are such runs, and so is one layer of each of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from .exported import driver
from .registered import PIECE_BYTES

STEP_MAX = (1 << 31) - 1  # bytes: CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device there is
_HOST, _DEVICE = 1, 2  # CUmemorytype


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`count` runs of `size` bytes: where the first begins on the host and on the device, and how
    far it is to the next."""

    host: int
    here: int
    size: int
    count: int = 1
    host_step: int = 0
    here_step: int = 0


def rectangles(runs: Sequence[tuple[int, int, int]]) -> list[Rectangle]:
    """Of runs, each with its place on the host, its place on the device and its bytes, those next
    to each other that make one. Pure. None goes across two pieces that a device is told of."""
    found, first = list[Rectangle](), 0
    while first < len(runs):
        host, here, size = runs[first]
        piece, next_, steps = host // PIECE_BYTES, first + 1, (0, 0)
        while next_ < len(runs) and runs[next_][2] == size:
            there, its, _ = runs[next_]
            apart = there - runs[next_ - 1][0], its - runs[next_ - 1][1]
            if there // PIECE_BYTES != piece or (next_ > first + 1 and apart != steps):
                break
            if not (size <= min(apart) and max(apart) <= STEP_MAX):
                break
            steps, next_ = apart, next_ + 1
        found.append(Rectangle(host, here, size, next_ - first, *steps))
        first = next_
    return found


def copied_out(one: Rectangle, here: torch.Tensor, host: torch.Tensor) -> None:
    """From the device to the host, behind what the current stream was told. Both uint8, 1-D, and
    the host's memory known to the device. Raises `RuntimeError`."""
    if _is_cuda(here.device):
        _copied(here.device, one, _on_device(one, here), _on_host(one, host))
        return
    for there, its in _places(one):
        host[there : there + one.size].copy_(here[its : its + one.size], non_blocking=True)


def copied_in(one: Rectangle, host: torch.Tensor, here: torch.Tensor) -> None:
    """The other way."""
    if _is_cuda(here.device):
        _copied(here.device, one, _on_host(one, host), _on_device(one, here))
        return
    for there, its in _places(one):
        here[its : its + one.size].copy_(host[there : there + one.size], non_blocking=True)


def _is_cuda(device: torch.device) -> bool:
    """Whether CUDA's driver has it: torch calls AMD's devices so too."""
    return device.type == "cuda" and torch.version.hip is None


def _places(one: Rectangle) -> Iterable[tuple[int, int]]:
    return (
        (one.host + nth * one.host_step, one.here + nth * one.here_step) for nth in range(one.count)
    )


class _End(ctypes.Structure):
    """One side of CUDA_MEMCPY2D."""

    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("memory_type", ctypes.c_uint),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
    )


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("source", _End),
        ("destination", _End),
        ("width_in_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def _on_host(one: Rectangle, memory: torch.Tensor) -> _End:
    return _End(0, 0, _HOST, memory.data_ptr() + one.host, 0, None, one.host_step or one.size)


def _on_device(one: Rectangle, memory: torch.Tensor) -> _End:
    return _End(0, 0, _DEVICE, None, memory.data_ptr() + one.here, None, one.here_step or one.size)


def _copied(device: torch.device, one: Rectangle, source: _End, destination: _End) -> None:
    told = _Copy(source, destination, one.size, one.count)
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    error = driver().cuMemcpy2DAsync_v2(ctypes.byref(told), stream)
    if error:
        raise RuntimeError(f"cuMemcpy2DAsync of {one}: CUDA error {error}")
