"""The unverified twin of a fetch: the same calls and the same copies, with no hash computed.

The product has no switch that turns verification off, and must not have one. So the twin is made
here, by putting another transport under the client's own reader: Open, Close, looking for what is
written and the check that the slots are still ours all stay. Only two things change. `roots` reads
the root that the node recorded in the slot instead of computing it, and `load` copies each run of
bytes without hashing it.

It copies in one of two ways. `MEMCPY` is the C library's. `STREAM` is the loop that the product's
fused kernel runs, with its stores past the cache and its look ahead, less the arithmetic: against
`MEMCPY` alone, a fetch that stores past the cache could seem to verify in less than no time. Either
is told of all its runs beforehand; a run is one layer of one block, all heads of it.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kvstore.client import Client
from kvstore.kernels.accumulator import AHEAD
from kvstore.kernels.memory import fence, prefetch, stream_line
from kvstore.kernels.strip_move import LINE
from kvstore.kernels.xxh3 import U
from kvstore.layout import ROOT_OFFSET, Fragment, SlotLayout
from kvstore.limits import ROOT_BYTES
from kvstore.transfer.protocol import Ints, Mask, Memory, Slots, Transport

Addresses = npt.NDArray[np.uint64]
Copy = Callable[[Addresses, Addresses, int], None]  # targets, sources, bytes of each run


def MEMCPY(targets: Addresses, sources: Addresses, count: int) -> None:
    for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
        ctypes.memmove(target, source, count)


@njit(nogil=True)
def STREAM(targets: Any, sources: Any, count: Any) -> None:
    for run in range(len(targets)):
        for done in range(0, count, LINE):
            prefetch(sources[run] + U(done + AHEAD))
            stream_line(targets[run] + U(done), sources[run] + U(done))
    fence()


def unverified(client: Client, copy: Copy) -> Client:
    """The client, whose fetches verify nothing from now on."""
    link = client.connection.link()
    link.transport = _Unverified(link.transport, copy)
    return client


class _Unverified:
    """A transport that moves as its original does, and vouches for nothing."""

    def __init__(self, original: Transport, copy: Copy) -> None:
        self._original, self._copy = original, copy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def roots(self, layout: SlotLayout, slots: Slots) -> npt.NDArray[np.uint8]:
        recorded = ROOT_OFFSET - layout.head_bytes  # seen from the payload
        texts = (ctypes.string_at(at + recorded, ROOT_BYTES) for at in self._at(layout, slots))
        return np.frombuffer(b"".join(texts), np.uint8).reshape(-1, ROOT_BYTES)

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        _check_whole_pages(layout, slots, memory, fragment)
        layer_bytes = layout.kv_heads * layout.strip_stride
        pages = memory.block_table[starts // memory.page_tokens] * memory.page_stride
        payloads = np.array(self._at(layout, slots), np.uint64)
        layers = np.arange(fragment.layer_first, fragment.layer_first + fragment.layers)
        targets = pages.astype(np.uint64)[:, None] + memory.addresses(fragment)
        sources = payloads[:, None] + (layers * layer_bytes).astype(np.uint64)
        self._copy(targets.ravel(), sources.ravel(), layer_bytes)
        return np.ones(len(slots), bool)

    def _at(self, layout: SlotLayout, slots: Slots) -> list[int]:
        """Addresses of the payloads. The arena stays mapped: the client holds its transport."""
        return [view.ctypes.data for view in self._original.views(layout, slots)]


def _check_whole_pages(
    layout: SlotLayout, slots: Slots, memory: Memory, fragment: Fragment
) -> None:
    """The twin copies raw memory, so it takes only what it is made for: a page holds a block."""
    same = (
        memory.page_tokens == layout.block_tokens
        and memory.head_stride == layout.strip_stride
        and memory.token_stride == layout.token_bytes
        and memory.part_stride == layout.run_bytes
        and fragment.heads == layout.kv_heads
        and layout.strip_stride % LINE == 0
        and not any(int(address) % LINE for address in memory.layer_addresses)
        and bool((slots.tokens == layout.block_tokens).all())
    )
    if not same:
        raise ValueError("the unverified twin copies whole blocks into pages of their own layout")
