"""Another host: strips over plain sockets, from slots to memory and back, verified where they land.

Bytes go straight to and from the caller's pages where whole strips lie dense in them. Elsewhere
they pass through a small buffer, which they leave by the kernels' one pass (verify, permute, copy)
while it is in the processor's cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.errors import (
    AlreadyWritten,
    Invalid,
    KVStoreError,
    NotYours,
    OutOfRange,
    Unavailable,
    WindowClosed,
)
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer import calls
from kvstore.transfer.ahead import TcpAhead
from kvstore.transfer.direct import Pages
from kvstore.transfer.filling import Filling, Staged
from kvstore.transfer.frames import Found, Status
from kvstore.transfer.landing import Landing
from kvstore.transfer.lanes import Lane, Lanes
from kvstore.transfer.probe import Probe
from kvstore.transfer.protocol import Ahead, Ints, Mask, Memory, Slots
from kvstore.transfer.stream import LatestTls


class TcpTransport:
    """Data connections to one node, tied to one session. Safe to use from several threads."""

    name = "tcp"

    def __init__(
        self,
        address: str,
        session: bytes,
        token: bytes,
        deadline_seconds: float,
        tls: LatestTls | None = None,
    ) -> None:
        self.lanes = Lanes(address, session, token, deadline_seconds, tls)

    def lends(self, layout: SlotLayout) -> bool:
        return False  # a GPU's memory is mapped on its own host

    def give_back(self) -> None:
        pass  # it has nothing

    def takes(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        return np.zeros(len(slots), bool)  # sockets take bytes of the host

    def store(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> None:
        statuses = np.zeros(len(slots), dtype=np.uint8)
        direct = self.straight(layout, memory, starts, slots.tokens, fragment)

        def send(lane: Lane, rows: Ints) -> None:
            some = slots.pick(rows)
            handles = some.handles.tolist()
            if direct is not None:
                statuses[rows] = lane.write(handles, direct, rows, fragment)
                return
            staged = Staged(lane, layout, some.tokens, memory, starts[rows], fragment)
            statuses[rows] = lane.write(handles, staged, np.arange(len(rows)), fragment)

        self.lanes.spread(layout, len(slots), fragment, send)
        check_stored(statuses, fragment)

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        direct = self.straight(layout, memory, starts, slots.tokens, fragment)
        job = Filling(direct, layout, slots, memory, starts, fragment)
        self.lanes.spread(layout, len(slots), fragment, job.by_asking)
        return job.good

    def ahead(self, layout: SlotLayout, count: int, fragment: Fragment) -> Ahead | None:
        return TcpAhead.of(self.lanes, self.straight, layout, count, fragment)

    def straight(
        self,
        layout: SlotLayout,
        memory: Memory,
        starts: Ints,
        tokens: npt.NDArray[np.int32],
        fragment: Fragment,
    ) -> Pages | None:
        """These blocks where they belong in the caller's memory, if bytes may go straight there."""
        return Pages.of(layout, memory, starts, tokens, fragment)

    def pull(
        self, layout: SlotLayout, slots: Slots, fragment: Fragment, into: Landing, rows: Ints
    ) -> Mask:
        """As `Lanes.pull`."""
        return self.lanes.pull(layout, slots, fragment, into, rows)

    def probe(self) -> Probe:
        """What one connection to the node can do."""
        return self.lanes.probe()

    def verify(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Mask:
        raise _no_views()

    def written(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Ints:
        layers = np.full(len(slots), fragment.layers, dtype=np.int64)
        open_ = np.flatnonzero(~slots.rooted)
        if len(open_):
            layers[open_] = self.lanes.look(slots.pick(open_), fragment).layers
        return layers

    def stirred(self, layout: SlotLayout, slots: Slots, layers: Ints, fragment: Fragment) -> bool:
        return True  # to find out takes as long as to ask what

    def current(self, slots: Slots, sound: Mask) -> Mask:
        # Bytes that agree with a block's root are that block's, whatever its slot holds by now.
        still = np.asarray(slots.rooted & sound)
        open_ = np.flatnonzero(~still)
        if len(open_):
            looked = self.lanes.look(slots.pick(open_), Fragment(0, 1, 0, 1))
            still[open_] = looked.found != Found.GONE
        return still

    def filling(self, slots: Slots) -> Mask:
        still = ~slots.rooted
        open_ = np.flatnonzero(still)
        if len(open_):
            looked = self.lanes.look(slots.pick(open_), Fragment(0, 1, 0, 1))
            still[open_] = looked.found == Found.FILLING
        return still

    def views(self, layout: SlotLayout, slots: Slots) -> list[npt.NDArray[np.uint8]]:
        raise _no_views()

    def close(self) -> None:
        """Let calls under way finish, then hang up."""
        self.lanes.close()


def check_stored(statuses: calls.Statuses, fragment: Fragment) -> None:
    """Raise for the first of the blocks that a node says it has not taken."""
    bad = np.flatnonzero(statuses != Status.MOVED)
    if not len(bad):
        return
    status = int(statuses[bad[0]])
    if status == Status.DAMAGED:
        raise Unavailable(f"{len(bad)} blocks were damaged on their way to the node")
    if status not in _STORED:
        raise Unavailable(f"the node answered {status}, which says nothing of a block")
    why = Status(status).name.lower()
    raise _STORED[status](f"{fragment} of {len(bad)} of the blocks: {why}")


_STORED: dict[int, type[KVStoreError]] = {
    Status.LAPSED: WindowClosed,
    Status.REFUSED: NotYours,
    Status.WRITTEN: AlreadyWritten,
    Status.OUT_OF_RANGE: OutOfRange,
}


def _no_views() -> Invalid:
    return Invalid(
        "blocks of another host cannot be read where they lie: load them into memory of your own  "
        "# incorrect: client.pin(blocks); correct: client.get(blocks, memory)"
    )
