"""The caller's tensors as `Memory`: numpy arrays and torch tensors alike, without importing torch.

Anything with `data_ptr()` and `stride()` is a torch tensor, of the CPU, or of a CUDA device, whose
bytes go as `kvstore.transfer.staged` says; anything else must be a numpy array. The layout is taken
from the tensor's own strides and the axes the caller names, never guessed from a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.errors import Invalid
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer.protocol import Memory

# Axes of one layer's tensor, by letter: page, head, token, part (K, V), dim. A dense tensor of one
# sequence has no page axis; a latent (MLA) cache has no part axis.
PAGED = "phtkd"
DENSE = "thkd"


def memory_of(
    tensors: Sequence[Any],
    layout: SlotLayout,
    dtype: str,
    axes: str,
    block_table: npt.ArrayLike | None = None,
    layer_first: int = 0,
    head_first: int = 0,
) -> Memory:
    """Describe one tensor per layer, all of one shape and stride.

    `axes` names the tensor's axes in order, e.g. `"phtkd"` for (pages, heads, page tokens, K/V,
    head dim). `block_table` lists the sequence's pages; a dense tensor needs none.
    Raises `Invalid` naming the axis or tensor that is wrong.
    """
    if not tensors:
        raise Invalid("no tensors: one for each layer is wanted")
    _check_axes(axes, layout)
    first = _Facts(tensors[0], "tensors[0]")
    for i, tensor in enumerate(tensors):
        facts = _Facts(tensor, f"tensors[{i}]")
        if (facts.shape, facts.strides, facts.dtype) != (first.shape, first.strides, first.dtype):
            raise Invalid(f"tensors[{i}] differs from tensors[0] in shape, strides or dtype")
    if first.dtype != dtype:
        raise Invalid(f"dtype is {first.dtype}; the namespace stores {dtype}")
    if len(first.shape) != len(axes):
        raise Invalid(f"the tensor has shape {first.shape}; axes {axes!r} name {len(axes)}")
    size = dict(zip(axes, first.shape, strict=True))
    stride = dict(zip(axes, first.strides, strict=True))
    _check_sizes(size, stride, layout, first.item_bytes)
    layout.check(Fragment(layer_first, len(tensors), head_first, size["h"]))
    return Memory(
        layer_addresses=np.array([_Facts(t, "").address for t in tensors], dtype=np.uint64),
        page_stride=stride.get("p", 0),
        head_stride=stride["h"],
        token_stride=stride["t"],
        part_stride=stride.get("k", 0),
        page_tokens=size["t"],
        page_count=size.get("p", 1),
        block_table=_table(block_table) if "p" in axes else np.zeros(1, dtype=np.int64),
        heads=size["h"],
        layer_first=layer_first,
        head_first=head_first,
        owners=tuple(tensors),
        staging=_staging(tensors),
    )


def _staging(tensors: Sequence[Any]) -> Any:
    """What takes tensors of a GPU through host memory; None for those of the host."""
    devices = {str(getattr(tensor, "device", "cpu")) for tensor in tensors}
    if len(devices) > 1:
        named = ", ".join(sorted(devices))
        raise Invalid(f"the tensors are on {named}; they must be on one device")
    if devices == {"cpu"}:
        return None
    device = tensors[0].device
    try:
        from kvstore.kernels.gpu.staging import staging_of
    except ImportError as error:
        raise Invalid(
            f"tensors on {device} need {error.name or error}: pip install 'moonpool[gpu]'"
        ) from error
    return staging_of(device)


def _table(block_table: npt.ArrayLike | None) -> npt.NDArray[np.int64]:
    if block_table is None:
        raise Invalid("a paged tensor needs block_table, the sequence's pages in order")
    table = np.asarray(block_table)
    if table.ndim != 1 or (len(table) and table.dtype.kind not in "iu"):
        kind = f"{table.ndim}-dimensional {table.dtype}"
        raise Invalid(f"block_table is {kind}; one row of page numbers is wanted")
    return np.array(table, dtype=np.int64)  # a copy: the engine changes its own


def check_target(memory: Memory) -> None:
    """Raise `Invalid` for memory that may not be loaded into."""
    if any(isinstance(one, np.ndarray) and not one.flags.writeable for one in memory.owners):
        raise Invalid("the memory to load into is read-only; give an array that is writeable")


def heads_of(tensor: Any, axes: str) -> int:
    """How many heads a tensor holds."""
    return int(tensor.shape[axes.index("h")])


class _Facts:
    """Address, shape, strides (bytes) and dtype name of a tensor of either kind."""

    def __init__(self, tensor: Any, name: str) -> None:
        if hasattr(tensor, "data_ptr"):
            if tensor.device.type not in ("cpu", "cuda"):
                raise Invalid(f"{name} is on {tensor.device}; tensors of CPU and CUDA are moved")
            self.item_bytes = int(tensor.element_size())
            self.address = int(tensor.data_ptr())
            self.strides = tuple(int(s) * self.item_bytes for s in tensor.stride())
            self.dtype = str(tensor.dtype).removeprefix("torch.")
        elif isinstance(tensor, np.ndarray):
            self.item_bytes = tensor.itemsize
            self.address = tensor.ctypes.data
            self.strides = tensor.strides
            self.dtype = tensor.dtype.name if tensor.dtype.isnative else tensor.dtype.str
        else:
            kind = type(tensor).__name__
            raise Invalid(f"{name} is a {kind}; a numpy array or a torch tensor is wanted")
        self.shape = tuple(int(n) for n in tensor.shape)


def _check_axes(axes: str, layout: SlotLayout) -> None:
    wanted = {"h", "t", "d"} | ({"k"} if layout.parts == 2 else set())
    if len(set(axes)) != len(axes) or not wanted <= set(axes) <= wanted | {"p"}:
        names = "p(age) h(ead) t(oken) k(K/V) d(im)"
        raise Invalid(f"axes {axes!r}: name each of {''.join(sorted(wanted))} once, of {names}")


def _check_sizes(
    size: dict[str, int], stride: dict[str, int], layout: SlotLayout, item_bytes: int
) -> None:
    if stride["d"] != item_bytes:
        raise Invalid(
            "the head dim is not contiguous  # incorrect: cache.transpose(-1, -2); "
            "correct: cache.transpose(-1, -2).contiguous()"
        )
    if size["d"] * item_bytes != layout.run_bytes:
        raise Invalid(f"head dim {size['d']}: the namespace has {layout.run_bytes // item_bytes}")
    if size.get("k", layout.parts) != layout.parts:
        raise Invalid(f"axis k has {size['k']} entries; K and V make {layout.parts}")
    if any(n < 1 for n in size.values()):
        raise Invalid(f"the tensor is empty: {size}")
