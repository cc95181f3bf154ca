"""Fences around what a GPU's kernel is told of: interpreted, it loads and stores nothing beside.

A program is given each tensor's address with the tensor's number in its top 16 bits, which are 0 in
every address of a process. Whatever is added to it, an address so says which tensor it is meant to
be in, and is looked up there: one byte beyond is found, whosever memory that is. An address without
a number was read from memory, as those of an engine's layers are; it must be in a tensor that the
test has `told` of. What is found is raised before memory is touched. Lanes that are masked off
touch none, and may point anywhere.

A store must be to what the kernel writes (`WRITES`), and an access at a multiple of its own width,
as a GPU has it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from tests.gpu import DEVICE

PAGES = "pages"  # what is reached by an address that was read
WRITES = {
    "gather_tile": {"slots"},
    "scatter_tile": {PAGES},
    "gather_strip": {"slots"},
    "scatter_strip": {PAGES, "good"},
    "verify_strip": {"good"},
    "enter_strip": {"slots"},
    "encode_group": {"slots"},
    "decode_group": {PAGES},
    "attend_rows": {"out"},
    "attend_part": {"sums"},
    "join_parts": {"out"},
}
INTERPRETED = DEVICE.type == "cpu"
_NUMBERED = np.uint64(48)  # the first bit of a number
_ADDRESS = np.uint64((1 << 48) - 1)

_told: list[weakref.ref[torch.Tensor]] = []


def told(*tensors: torch.Tensor) -> None:
    """Kernels may be given the addresses of these, for as long as they are there."""
    _told.extend(map(weakref.ref, tensors))


class Outside(Exception):
    """Which kernel, which of its programs, and what it would have touched."""


@dataclass(frozen=True)
class Region:
    """Bytes of a tensor: runs of `run` bytes, repeated along axes of (steps, bytes of a step)."""

    name: str
    first: int
    axes: tuple[tuple[int, int], ...]  # the longest step first
    run: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Region:
        run, axes = tensor.element_size() if tensor.numel() else 0, list[tuple[int, int]]()
        sizes = zip(tensor.stride(), tensor.shape, strict=True)
        for step, size in sorted((one * tensor.element_size(), count) for one, count in sizes):
            if not axes and step <= run:
                run += (size - 1) * step
            elif size > 1:
                axes.insert(0, (size, step))
        return cls(name, tensor.data_ptr(), tuple(axes), run)

    def holds(self, addresses: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
        """Which accesses of so many bytes are all within one of the runs."""
        left = addresses - self.first
        for size, step in self.axes:
            left = left - np.clip(left // step, 0, size - 1) * step
        return np.asarray((left >= 0) & (left + width <= self.run))

    def place(self, address: int) -> str:
        return f"byte {address - self.first} of {self.name}"


class Fences:
    """Around one launch after another. `found` is all that reached outside, `stored` which tensors
    of which kernels were stored to."""

    def __init__(self, writes: Mapping[str, set[str]]) -> None:
        self._writes = writes
        self.found: list[Outside] = []
        self.stored: set[tuple[str, str]] = set()

    def launch(self, executor: Any, given: tuple[list[Any], dict[str, Any]]) -> None:
        """`given`: the arguments as the program dereferences them; the interpreter copies those
        that are not on the host."""
        self._kernel, self._numbers = executor.fn.__name__, dict[int, int]()
        there = [one for ref in _told if (one := ref()) is not None]
        _told[:] = [ref for ref in _told if ref() is not None]
        self._regions = {0: [Region.of(PAGES, one) for one in there]}
        arguments = inspect.getcallargs(executor.fn, *given[0], **given[1])
        for number, (name, one) in enumerate(arguments.items(), 1):
            if isinstance(one, torch.Tensor):
                self._numbers[id(one)], self._regions[number] = number, [Region.of(name, one)]

    def number(self, argument: Any, made: Any) -> Any:
        """What the program is given for an argument, numbered if it is a tensor."""
        if isinstance(argument, torch.Tensor):
            made.handle.data |= np.uint64(self._numbers.get(id(argument), 0)) << _NUMBERED
        return made

    def passed(self, pointers: Any, mask: Any, verb: str) -> Any:
        """The pointers as addresses. Raises `Outside`."""
        width = interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
        live = pointers.data[np.broadcast_to(mask, pointers.data.shape)]
        numbers, addresses = live >> _NUMBERED, (live & _ADDRESS).astype(np.int64)
        for number in np.unique(numbers).tolist():
            self._check(number, addresses[numbers == number], width, verb)
        return interpreter.TensorHandle(pointers.data & _ADDRESS, pointers.dtype)

    def _check(self, number: int, addresses: NDArray[np.int64], width: int, verb: str) -> None:
        held, regions = np.zeros(len(addresses), np.bool_), self._regions.get(number, [])
        for region in regions:
            held |= region.holds(addresses, width)
        if not held.all():
            wild = int(addresses[np.argmin(held)])
            near = min(regions, key=lambda one: abs(wild - one.first), default=None)
            where = near.place(wild) if near else f"address {wild:#x}"
            self._raise(f"{verb} {width} bytes at {where}, outside of what it was told of")
        if (addresses % width).any():
            self._raise(f"{verb} {width} bytes of {regions[0].name} at no multiple of {width}")
        if verb == "stores":
            name = regions[0].name
            self.stored.add((self._kernel, name))
            if name not in self._writes.get(self._kernel, ()):
                self._raise(f"{verb} to {name}, which it is to read alone")

    def _raise(self, what: str) -> None:
        program = interpreter.interpreter_builder.grid_idx
        self.found.append(Outside(f"{self._kernel}, program {program}: {what}"))
        raise self.found[-1]


@contextmanager
def standing(writes: Mapping[str, set[str]] = WRITES) -> Iterator[Fences]:
    """Until the block's end, for all that this process launches. A launch raises `Outside`, and so
    does the end if somebody caught that."""
    fences = Fences(writes)

    def call(executor: Any, *arguments: Any, **named: Any) -> None:
        before = len(fences.found)
        try:
            _CALL(executor, *arguments, **named)
        except InterpreterError:
            if len(fences.found) > before:
                raise fences.found[-1] from None
            raise

    def to_host(executor: Any, arguments: Any, named: Any) -> Any:
        given = _TO_HOST(executor, arguments, named)
        fences.launch(executor, given)
        return given

    def load(builder: Any, pointers: Any, mask: Any, *more: Any, **named: Any) -> Any:
        return _LOAD(builder, fences.passed(pointers, mask.data, "loads"), mask, *more, **named)

    def store(builder: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        return _STORE(builder, fences.passed(pointers, mask.data, "stores"), value, mask, *more)

    def swap(builder: Any, pointers: Any, *more: Any) -> Any:
        return _SWAP(builder, fences.passed(pointers, np.True_, "stores"), *more)

    def change(builder: Any, how: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        there = fences.passed(pointers, mask.data, "stores")
        return _CHANGE(builder, how, there, value, mask, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "__call__", call)
        patch.setattr(interpreter.GridExecutor, "_init_args_hst", to_host)
        patch.setattr(interpreter, "_implicit_cvt", lambda one: fences.number(one, _CONVERT(one)))
        for name, checked in zip(ACCESSES, (load, store, swap, change), strict=True):
            patch.setattr(interpreter.InterpreterBuilder, name, checked)
        yield fences
    if fences.found:
        raise fences.found[0]


ACCESSES = (
    "create_masked_load",
    "create_masked_store",
    "create_atomic_cas",
    "create_atomic_rmw",
)
_LOAD, _STORE, _SWAP, _CHANGE = (getattr(interpreter.InterpreterBuilder, one) for one in ACCESSES)
_CALL, _TO_HOST = interpreter.GridExecutor.__call__, interpreter.GridExecutor._init_args_hst
_CONVERT = interpreter._implicit_cvt
