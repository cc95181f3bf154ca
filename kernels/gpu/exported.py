"""HBM that several processes of one host map: one takes it and gives out a handle, the others open
that. By CUDA's inter-process handles (CUDA Driver API, "Memory Management": cuIpcGetMemHandle,
cuIpcOpenMemHandle).

A handle is 64 bytes that mean something to CUDA on this host alone. Memory that is opened stays
there for as long as its maker lives, and what is read from it afterwards is nobody's promise.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

log = logging.getLogger(__name__)

HANDLE_BYTES = 64
_OUT_OF_MEMORY = 2
_LAZY_PEER_ACCESS = 1


class NoDevice(Exception):
    """There is no such GPU."""


class NoMemory(Exception):
    """The device has not so much left."""


class CudaError(Exception):
    """CUDA is not there, or what it said of a call, by its number."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class Region:
    """Bytes of one device, mapped into this process: `bytes` is uint8. `close` it once nothing of
    it is used any more."""

    def __init__(self, address: int, size: int, device: torch.device, end: str) -> None:
        """`end`: the call that gives it back."""
        self.address, self.device, self._end = address, device, end
        self.bytes = torch.as_tensor(_Interface(address, size), device=device)

    def close(self) -> None:
        """On any thread. Once."""
        self.bytes = torch.empty(0, dtype=torch.uint8, device=self.device)
        with _current(self.device) as driver:
            error = getattr(driver, self._end)(ctypes.c_uint64(self.address))
        if error:
            log.warning("%s: CUDA error %d", self._end, error)


class Taken(Region):
    """A region that this process took, and the handle by which others open it."""

    def __init__(self, size: int, device: torch.device) -> None:
        """Raises `NoMemory`, or `CudaError`."""
        address, handle = _allocated(size, device), _Handle()
        with _current(device) as driver:
            try:
                _check("cuIpcGetMemHandle", driver.cuIpcGetMemHandle(ctypes.byref(handle), address))
            except CudaError:
                driver.cuMemFree_v2(address)
                raise
        self.handle = bytes(handle)
        super().__init__(address.value, size, device, "cuMemFree_v2")


def allocated(size: int, device: torch.device) -> Region:
    """So much of a device, for this process alone. Raises `NoMemory`, or `CudaError`."""
    return Region(_allocated(size, device).value, size, device, "cuMemFree_v2")


def taken(size: int, device: torch.device) -> Taken:
    """So much of a device. Raises `NoMemory`, or `CudaError`."""
    return Taken(size, device)


def opened(handle: bytes, size: int, device: torch.device) -> Region:
    """What another process took of the same device. Raises `CudaError`."""
    if len(handle) != HANDLE_BYTES:
        raise CudaError(f"a handle of {len(handle)} bytes; it has {HANDLE_BYTES}")
    given, flags = _Handle.from_buffer_copy(handle), ctypes.c_uint(_LAZY_PEER_ACCESS)
    address = ctypes.c_uint64()
    with _current(device) as driver:
        error = driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), given, flags)
    _check("cuIpcOpenMemHandle", error)
    return Region(address.value, size, device, "cuIpcCloseMemHandle")


def device_of(index: int) -> torch.device:
    """The GPU of that number. Raises `NoDevice`."""
    if not torch.cuda.is_available():
        raise NoDevice("there is no CUDA device here")
    if index >= torch.cuda.device_count():
        raise NoDevice(f"the devices here are 0 to {torch.cuda.device_count() - 1}")
    return torch.device("cuda", index)


def devices() -> list[torch.device]:
    """The GPUs that this process sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", index) for index in range(count)]


def name_of(device: torch.device) -> str:
    """By which processes know that they mean one GPU, however each numbers its own; "" of what is
    none."""
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def pci_address_of(device: torch.device) -> str:
    """By which the host's kernel knows it (0000:3b:00.0); "" of what is no GPU of this host, or
    where torch does not say."""
    if device.type != "cuda":
        return ""
    try:
        told = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError):  # of the second kind is that torch is without CUDA
        return ""
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")  # an older torch has them not
    numbers = [int(getattr(told, name)) for name in names if hasattr(told, name)]
    return "{:04x}:{:02x}:{:02x}.0".format(*numbers) if len(numbers) == len(names) else ""


class _Interface:
    """Memory of a device as torch takes it: CUDA Array Interface, version 3."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def _allocated(size: int, device: torch.device) -> ctypes.c_uint64:
    address = ctypes.c_uint64()
    with _current(device) as driver:
        error = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if error == _OUT_OF_MEMORY:
        raise NoMemory(f"{device} has no {size} bytes left")
    _check("cuMemAlloc", error)
    return address


@contextmanager
def _current(device: torch.device) -> Iterator[Any]:
    """The driver. Inside this the device's context is current on this thread, that of torch; then
    what was before: an engine's own tensors go to whichever is."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).synchronize()  # makes it, where nothing has yet
        yield driver()


@cache
def driver() -> Any:
    """CUDA's driver library. Raises `CudaError`."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(str(error)) from error


def _check(what: str, error: int) -> None:
    if error:
        raise CudaError(f"{what}: CUDA error {error}")
