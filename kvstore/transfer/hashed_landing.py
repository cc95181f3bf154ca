"""A landing whose strips are hashed as they come and go, where this process can; where it cannot,
right after they came or right before they go, a few blocks at a time.

What was hashed on its way is not hashed again to be proven.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvstore.layout import Fragment
from kvstore.transfer.calls import few
from kvstore.transfer.hashed import receive_hashed, send_hashed
from kvstore.transfer.landing import Landing, rows_of
from kvstore.transfer.protocol import Ints
from kvstore.transfer.stream import DataStream


class HashedLanding(Landing):
    """As `Landing`."""

    @cached_property
    def _came(self) -> npt.NDArray[np.uint64]:
        """(n, strips): what each had when it came; 0, as none has, of those that have not."""
        return np.zeros((len(self.offsets), self.layout.strips), np.uint64)

    def receive(self, stream: DataStream, rows: Ints, fragment: Fragment) -> None:
        strips = rows_of(self.layout, fragment)
        lead = self.leads.ctypes.data + self.leads.strides[0] * rows
        pieces = self._pieces(rows, fragment, lead, self.leads.shape[1])
        found = receive_hashed(stream, pieces.reshape(-1, 2))
        if found is not None:
            self._came[np.ix_(rows, strips)] = found.reshape(pieces.shape[:2])[:, 1:]
            return
        for some in few(rows, self.few(self.layout, fragment)):
            super().receive(stream, some, fragment)
            self._came[np.ix_(some, strips)] = self.hashed(some, fragment)

    def send(self, stream: DataStream, rows: Ints, fragment: Fragment) -> None:
        entries = np.zeros((len(rows), fragment.strips), np.uint64)
        lead = entries.ctypes.data + entries.strides[0] * np.arange(len(rows))
        pieces = self._pieces(rows, fragment, lead, entries.strides[0])
        if not send_hashed(stream, pieces.reshape(-1, 2), entries):
            for some in few(rows, self.few(self.layout, fragment)):
                super().send(stream, some, fragment)

    def entries(self, rows: Ints, fragment: Fragment) -> npt.NDArray[np.uint64]:
        came = self._came[np.ix_(rows, rows_of(self.layout, fragment))]
        return came if came.all() else self.hashed(rows, fragment)

    def addresses(self, rows: Ints, fragment: Fragment) -> npt.NDArray[np.uint64]:
        """(rows, strips of the fragment): the address of each, in slot order."""
        first = self.memory.ctypes.data + self.offsets[rows]
        lie = rows_of(self.layout, fragment) * self.layout.strip_stride
        return (first[:, None] + lie).astype(np.uint64)

    def sizes(self, rows: Ints) -> Ints:
        """(rows, 1): bytes of a strip."""
        each = [self.layout.strip_bytes(tokens) for tokens in self.tokens[rows].tolist()]
        return np.array(each, np.int64)[:, None]

    def _pieces(
        self, rows: Ints, fragment: Fragment, lead: Ints, lead_bytes: int
    ) -> npt.NDArray[np.uint64]:
        """(rows, 1 + strips, 2): address and bytes of what comes before a block's strips, and of
        these."""
        strips = self.addresses(rows, fragment)
        pieces = np.zeros((len(rows), 1 + strips.shape[1], 2), np.uint64)
        pieces[:, 0, 0], pieces[:, 0, 1] = lead, lead_bytes
        pieces[:, 1:, 0], pieces[:, 1:, 1] = strips, self.sizes(rows)
        return pieces
