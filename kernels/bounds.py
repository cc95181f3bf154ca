"""Every size is refused here, by name, before a kernel that checks nothing is given an address."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .shapes import Geometry, Pages


def within(name: str, values: NDArray[Any], first: int, last: int, unit: str) -> None:
    """Refuse the values unless all lie in first..last."""
    if not values.size or (values.min() >= first and values.max() <= last):
        return
    wrong = np.flatnonzero((values < first) | (values > last))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"{name}[{at}] is {values[at]}; {unit} must be {first}..{last}")


def integers(name: str, values: NDArray[Any], length: int | None = None) -> NDArray[np.int64]:
    """The values as the kernels take them: int64, contiguous, one dimension."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        kind = f"{array.ndim}-dimensional {array.dtype}"
        raise ValueError(f"{name} is {kind}; it must be one dimension of integers")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries; it must have {length}")
    if array.dtype == np.int64 and array.flags.carray:
        return array
    return np.require(array, np.int64, ["C", "W"])


def check_arena(arena: NDArray[np.uint8], writable: bool) -> int:
    """Its address."""
    if arena.ndim != 1 or arena.dtype != np.uint8 or not arena.flags.c_contiguous:
        kind = f"{arena.ndim}-dimensional {arena.dtype}"
        raise ValueError(f"arena is {kind}; it must be one contiguous run of uint8")
    if writable and not arena.flags.writeable:
        raise ValueError("arena is read-only; a gather needs a writable mapping")
    return arena.ctypes.data


def check_ranges(
    geometry: Geometry, layer_first: int, layer_count: int, head_first: int, head_count: int
) -> None:
    if layer_first < 0 or layer_count < 0 or layer_first + layer_count > geometry.layers:
        asked = f"{layer_first}..{layer_first + layer_count}"
        raise ValueError(f"layers {asked} are not within the block's 0..{geometry.layers}")
    if head_first < 0 or head_count < 0 or head_first + head_count > geometry.kv_heads:
        asked = f"{head_first}..{head_first + head_count}"
        raise ValueError(f"heads {asked} are not within the block's 0..{geometry.kv_heads}")


def check_tables(arena: NDArray[np.uint8], geometry: Geometry, tables: NDArray[np.int64]) -> None:
    within("table_offsets", tables, 0, arena.size - 8 * geometry.strips, "a table in the arena")
    if ((tables + arena.ctypes.data) % 8).any():
        raise ValueError("table_offsets are not all at multiples of 8; a table holds 64-bit words")


def check_payloads(
    arena_bytes: int,
    geometry: Geometry,
    payloads: NDArray[np.int64],
    tokens: NDArray[np.int64],
) -> None:
    room = arena_bytes - geometry.payload_bytes
    within("payload_offsets", payloads, 0, room, "a payload in the arena")
    within("tokens", tokens, 1, geometry.block_tokens, "a block's tokens")


def check_pages(
    pages: Pages,
    layer_count: int,
    starts: NDArray[np.int64],
    tokens: NDArray[np.int64],
    table: NDArray[np.int64],
) -> None:
    """Refuse pages that are not there. Entries of the table that no block covers may say anything.

    `tokens` have been checked.
    """
    if len(pages.layer_addresses) != layer_count:
        given = len(pages.layer_addresses)
        raise ValueError(f"layer_addresses has {given} entries; layer_count is {layer_count}")
    capacity = len(table) * pages.page_tokens
    if not len(starts):
        return
    if starts.min() < 0 or (starts > capacity - tokens).any():
        at = int(np.flatnonzero((starts < 0) | (starts > capacity - tokens))[0])
        raise ValueError(
            f"starts[{at}] is {starts[at]}, of {tokens[at]} tokens; "
            f"the block table has positions 0..{capacity - 1}"
        )
    if table.min() >= 0 and table.max() < pages.page_count:  # whatever of it is used
        return
    edges = np.zeros(len(table) + 1, np.int64)
    np.add.at(edges, starts // pages.page_tokens, 1)
    np.add.at(edges, (starts + tokens - 1) // pages.page_tokens + 1, -1)
    used = np.cumsum(edges[:-1]) > 0
    within("block_table", np.where(used, table, 0), 0, pages.page_count - 1, "a page")
