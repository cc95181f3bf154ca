"""HBM that a node lends of this process's own GPU: blocks go to and from slots there without
leaving it. Their heads are in the arena, as all slots' are.

Where the node lends none, or of another GPU, or its memory cannot be opened here, there is none:
the caller's blocks are in DRAM then, and nothing fails.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kvstore.errors import Invalid
from kvstore.kernels.pieces import Places
from kvstore.kernels.strips import Blocks
from kvstore.layout import Fragment, SlotLayout
from kvstore.memory.arena import Arena
from kvstore.transfer.kernel_terms import geometry, pages, span
from kvstore.transfer.protocol import Mask, Memory

log = logging.getLogger(__name__)

_WORD_BYTES, _STRIP_BYTES_MIN = 8, 24  # of what the device's programs hash: `kernels.gpu.strips`


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node says of the HBM that it lends."""

    size_bytes: int  # 0: none
    device: str  # by the name that it has for every process


NOTHING = Offer(0, "")
HANDLE_BYTES = 64  # by which it is opened


def lent(offer: Offer, handle: bytes, device: Any, arena: Arena) -> Lent | None:
    """What is offered of a device (None: the caller has none), opened; None where it cannot be."""
    if device is None or not offer.size_bytes:
        return None
    try:
        from kvstore.kernels.gpu import exported  # late: torch, where there is HBM
    except ImportError as error:
        log.warning("HBM that the node lends is of no use without %s", error.name)
        return None
    if exported.name_of(device) != offer.device:
        log.info("the node lends HBM of GPU %s, which %s is not", offer.device, device)
        return None
    try:
        return Lent(exported.opened(handle, offer.size_bytes, device), arena)
    except (exported.CudaError, RuntimeError) as error:  # of the second kind are torch's
        log.warning("HBM that the node lends cannot be opened for %s: %s", device, error)
        return None


class Lent:
    """The HBM of one session. Safe to use from several threads."""

    def __init__(self, region: Any, arena: Arena) -> None:
        """`region`: see `kernels.gpu.exported`. `arena`: where the slots' heads are, writable."""
        from kvstore.kernels.gpu.resident import Resident
        from kvstore.kernels.gpu.turn import Turn

        self._region, self._arena = region, arena
        self._resident = Resident(region.bytes, arena.size, Turn(region.device))

    @staticmethod
    def takes(layout: SlotLayout) -> bool:
        """Whether the device's programs move such slots."""
        least = layout.strip_bytes(1)
        return least >= _STRIP_BYTES_MIN and layout.run_bytes % _WORD_BYTES == 0

    def check(self, layout: SlotLayout, blocks: Blocks, memory: Memory, fragment: Fragment) -> None:
        """Raise `Invalid` for memory that is not moved to and from such slots."""
        staging, device = memory.staging, self._region.device
        if staging is None or not _same(staging.device, device):
            raise Invalid(
                f"these blocks are in HBM of {device}, of which this client is, and the memory is "
                "elsewhere: use a client with no `device` for it"
            )
        places = self._places(layout, blocks, fragment)
        if not staging.straight.takes(places, pages(memory, fragment)):
            raise Invalid(
                f"the memory's strides and addresses are not multiples of {_WORD_BYTES} bytes, "
                f"which a client of {device} wants: use one with no `device`"
            )

    def store(self, layout: SlotLayout, blocks: Blocks, memory: Memory, fragment: Fragment) -> None:
        """As `Transport.store`."""
        places = self._places(layout, blocks, fragment)
        self._resident.gathered(places, pages(memory, fragment), memory.block_table)

    def load(self, layout: SlotLayout, blocks: Blocks, memory: Memory, fragment: Fragment) -> Mask:
        """As `Transport.load` of blocks whose tables are vouched for."""
        places = self._places(layout, blocks, fragment)
        good: Mask = self._resident.scattered(places, pages(memory, fragment), memory.block_table)
        return good

    def close(self) -> None:
        """For when nothing moves, before the arena is unmapped."""
        del self._resident
        self._region.close()

    def _places(self, layout: SlotLayout, blocks: Blocks, fragment: Fragment) -> Places:
        return Places(self._arena.bytes, geometry(layout), span(fragment), blocks)


def _same(one: Any, other: Any) -> bool:
    """Whether two `torch.device`s are one; where no number is said the first is meant."""
    return bool(one.type == other.type and (one.index or 0) == (other.index or 0))
