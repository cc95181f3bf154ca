"""Over UCX: as over TCP, but strips go from memory to memory (`kvstore.transfer.ucx_lane`), a GPU's
too where that can be (`kvstore.transfer.gpu_direct`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer.gpu_direct import GpuDirect
from kvstore.transfer.landing import Landing
from kvstore.transfer.lanes import Lanes
from kvstore.transfer.protocol import Ints, Mask, Memory, Slots
from kvstore.transfer.stream import LatestTls
from kvstore.transfer.tcp import TcpTransport
from kvstore.transfer.ucx_agent import shared_agent
from kvstore.transfer.ucx_lane import UCX_STREAMS, UcxLane


class UcxTransport(TcpTransport):
    """As `TcpTransport`; strips go another way. Raises `ConfigError` where that cannot work."""

    name = "ucx"

    def __init__(
        self,
        address: str,
        session: bytes,
        token: bytes,
        deadline_seconds: float,
        tls: LatestTls | None = None,
    ) -> None:
        shared_agent()
        self.lanes = Lanes(
            *(address, session, token, deadline_seconds, tls), UcxLane, streams=UCX_STREAMS
        )
        self._direct = GpuDirect(self.lanes, address)

    def takes(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        return self._direct.takes(layout, slots, memory, starts, fragment)

    def store(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> None:
        if memory.staging is None:
            super().store(layout, slots, memory, starts, fragment)
            return
        self._direct.store(layout, slots, memory, starts, fragment)

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        if memory.staging is None:
            return super().load(layout, slots, memory, starts, fragment)
        return self._direct.load(layout, slots, memory, starts, fragment)

    def straight(
        self,
        layout: SlotLayout,
        memory: Memory,
        starts: Ints,
        tokens: npt.NDArray[np.int32],
        fragment: Fragment,
    ) -> None:
        """Never: the node is told of the memory that blocks pass through, and of no other."""

    def ahead(self, layout: SlotLayout, count: int, fragment: Fragment) -> None:
        """Never: the node moves bytes to where it is told with each call."""

    def pull(
        self, layout: SlotLayout, slots: Slots, fragment: Fragment, into: Landing, rows: Ints
    ) -> Mask:
        """As `Lanes.pull`. The landing's memory stays registered until this is closed: give a few
        large pieces of memory, not many small ones. After a failure bytes may still come there."""
        return self.lanes.pull(layout, slots, fragment, into, rows)
