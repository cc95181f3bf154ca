"""Memory of a GPU that several processes map: what CUDA is asked, and what becomes of its errors.

CUDA is played by memory of the host here, mapped anew for whoever opens it. One test is of a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu import exported
from tests import tree

SIZE = 8_192
CPU = torch.device("cpu")
ALLOC, FREE = "cuMemAlloc_v2", "cuMemFree_v2"
EXPORT, OPEN, CLOSE = "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"


class Driver:
    """CUDA's, which fails a call with the error that it has been told to."""

    def __init__(self, errors: dict[str, int]) -> None:
        self.errors = errors
        self.calls: list[str] = []
        self.taken: dict[int, int] = {}  # by address: the file behind it
        self.opened: dict[int, int] = {}
        self._mapped: list[mmap.mmap] = []  # to the end: what is freed may still be looked at

    def cuMemAlloc_v2(self, address: Any, size: ctypes.c_size_t) -> int:
        assert isinstance(size, ctypes.c_size_t)
        if error := self._asked(ALLOC):
            return error
        file = os.memfd_create("hbm")
        os.truncate(file, size.value)
        self.taken[self._map(address, file)] = file
        return 0

    def cuIpcGetMemHandle(self, handle: Any, address: ctypes.c_uint64) -> int:
        if error := self._asked(EXPORT):
            return error
        assert ctypes.sizeof(handle._obj) == 64
        made = bytes(60) + self.taken[address.value].to_bytes(4, "little")  # a zero ends nothing
        ctypes.memmove(handle, made, len(made))
        return 0

    def cuMemFree_v2(self, address: ctypes.c_uint64) -> int:
        os.close(self.taken.pop(address.value))
        return self._asked(FREE)

    def cuIpcOpenMemHandle_v2(
        self, address: Any, handle: ctypes.Structure, flags: ctypes.c_uint
    ) -> int:
        assert (ctypes.sizeof(handle), flags.value) == (64, 1)  # 1: the only one that there is
        if error := self._asked(OPEN):
            return error
        file = int.from_bytes(bytes(handle)[60:], "little")
        self.opened[self._map(address, file)] = file
        return 0

    def cuIpcCloseMemHandle(self, address: ctypes.c_uint64) -> int:
        del self.opened[address.value]
        return self._asked(CLOSE)

    def _asked(self, call: str) -> int:
        self.calls.append(call)
        return self.errors.get(call, 0)

    def _map(self, address: Any, file: int) -> int:
        """Has `address` point to the file's bytes."""
        assert isinstance(address._obj, ctypes.c_uint64)
        self._mapped.append(mmap.mmap(file, os.fstat(file).st_size))
        found = np.frombuffer(self._mapped[-1], np.uint8).ctypes.data
        address._obj.value = found
        return int(found)


def on_the_host(address: int, size: int) -> np.ndarray:
    """Such memory as torch takes it where there is no GPU."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def driver_with(monkeypatch: pytest.MonkeyPatch, **errors: int) -> Driver:
    driver = Driver(errors)
    monkeypatch.setattr(exported, "_current", lambda device: nullcontext(driver))
    monkeypatch.setattr(exported, "_Interface", on_the_host)
    return driver


def test_who_opens_a_handle_has_the_bytes_of_who_took_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = driver_with(monkeypatch)
    taken = exported.taken(SIZE, CPU)
    assert (taken.bytes.dtype, taken.bytes.shape) == (torch.uint8, (SIZE,))
    assert isinstance(taken.handle, bytes)
    assert len(taken.handle) == exported.HANDLE_BYTES == 64
    taken.bytes.copy_(torch.arange(SIZE) % 251)
    opened = exported.opened(taken.handle, SIZE, CPU)
    assert (opened.bytes.dtype, opened.bytes.shape) == (torch.uint8, (SIZE,))
    assert opened.address != taken.address
    assert torch.equal(opened.bytes, taken.bytes)
    opened.bytes.fill_(7)
    assert (taken.bytes == 7).all()
    assert driver.calls == [ALLOC, EXPORT, OPEN]
    opened.close()
    taken.close()


def test_memory_of_one_process_alone_has_no_handle_and_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = driver_with(monkeypatch)
    region = exported.allocated(SIZE, CPU)
    assert (region.bytes.dtype, region.bytes.shape) == (torch.uint8, (SIZE,))
    region.close()
    assert driver.calls == [ALLOC, FREE]
    driver.errors[ALLOC] = 2
    with pytest.raises(exported.NoMemory, match="no 8192 bytes left"):
        exported.allocated(SIZE, CPU)


def test_each_handle_is_of_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_with(monkeypatch)
    regions = [exported.taken(SIZE, CPU) for _ in range(3)]
    for number, region in enumerate(regions):
        region.bytes.fill_(number)
    for number, region in enumerate(regions):
        opened = exported.opened(region.handle, SIZE, CPU)
        assert (opened.bytes == number).all()
        opened.close()
        region.close()


def test_what_is_closed_is_given_back_once_by_the_call_for_how_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = driver_with(monkeypatch)
    taken = exported.taken(SIZE, CPU)
    opened = exported.opened(taken.handle, SIZE, CPU)
    assert (set(driver.taken), set(driver.opened)) == ({taken.address}, {opened.address})
    driver.calls.clear()
    opened.close()
    assert driver.calls == [CLOSE]
    taken.close()
    assert driver.calls == [CLOSE, FREE]
    assert (driver.taken, driver.opened) == ({}, {})
    assert len(taken.bytes) == len(opened.bytes) == 0


def test_a_device_that_has_not_so_much_left_is_named_with_what_it_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = driver_with(monkeypatch, cuMemAlloc_v2=2)
    with pytest.raises(exported.NoMemory, match=rf"^cpu has no {SIZE} bytes left$"):
        exported.taken(SIZE, CPU)
    assert driver.calls == [ALLOC]


def test_any_other_error_of_taking_is_said_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_with(monkeypatch, cuMemAlloc_v2=201)
    with pytest.raises(exported.CudaError, match=r"^cuMemAlloc: CUDA error 201$"):
        exported.taken(SIZE, CPU)
    assert driver.calls == [ALLOC]


def test_memory_of_which_there_is_no_handle_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_with(monkeypatch, cuIpcGetMemHandle=801)
    with pytest.raises(exported.CudaError, match=r"^cuIpcGetMemHandle: CUDA error 801$"):
        exported.taken(SIZE, CPU)
    assert driver.calls == [ALLOC, EXPORT, FREE]
    assert driver.taken == {}


def test_a_handle_that_cannot_be_opened_is_said_by_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = driver_with(monkeypatch, cuIpcOpenMemHandle_v2=400)
    with pytest.raises(exported.CudaError, match=r"^cuIpcOpenMemHandle: CUDA error 400$"):
        exported.opened(bytes(exported.HANDLE_BYTES), SIZE, CPU)
    assert driver.calls == [OPEN]


def test_whoever_calls_has_the_device_that_was_current_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current, asked = ["cuda:0"], list[str]()

    @contextmanager
    def device(one: torch.device) -> Iterator[None]:
        before, current[0] = current[0], str(one)
        yield
        current[0] = before

    class Asked(Driver):
        def _asked(self, call: str) -> int:
            asked.append(current[0])
            return super()._asked(call)

    driver, there = Asked({}), torch.device("cuda", 1)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(exported, "driver", lambda: driver)
    monkeypatch.setattr(exported.Region, "__init__", taken_as)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: current.__setitem__(0, str(one)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda one: stream)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    taken = exported.taken(SIZE, there)
    opened = exported.opened(taken.handle, SIZE, there)
    opened.close()
    taken.close()
    assert driver.calls == [ALLOC, EXPORT, OPEN, CLOSE, FREE]
    assert (set(asked), current) == ({"cuda:1"}, ["cuda:0"])


def taken_as(region: Any, address: int, size: int, device: torch.device, end: str) -> None:
    """A region whose bytes nobody looks at: torch has no tensor of a GPU here."""
    region.address, region.device, region._end = address, device, end


def test_a_processor_has_no_name() -> None:
    assert exported.name_of(CPU) == ""


OTHER = """
import sys
import torch
from kvstore.kernels.gpu import exported

size, device = int(sys.argv[2]), torch.device("cuda", 0)
opened = exported.opened(bytes.fromhex(sys.argv[1]), size, device)
assert opened.bytes.device == device and opened.bytes.data_ptr() == opened.address
assert torch.equal(opened.bytes.cpu(), (torch.arange(size) % 251).to(torch.uint8))
opened.bytes.fill_(7)
torch.cuda.synchronize(device)
opened.close()
print(exported.name_of(device))
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_another_process_reads_and_writes_what_this_one_took_of_a_gpu() -> None:
    size, device = 2 << 20, torch.device("cuda", 0)
    taken = exported.taken(size, device)
    assert taken.bytes.device == device
    assert taken.bytes.data_ptr() == taken.address
    taken.bytes.copy_(torch.arange(size) % 251)
    torch.cuda.synchronize(device)
    command = [sys.executable, "-c", OTHER, taken.handle.hex(), str(size)]
    ran = subprocess.run(command, cwd=tree.ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == exported.name_of(device) != ""
    assert (taken.bytes == 7).all()
    taken.close()
