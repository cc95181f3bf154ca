"""A slot's payload held against its strip table as it comes by, in order, in pieces of any size.

So a block is verified without being in memory as a whole, and without holding anybody up for longer
than one piece takes.
"""

from __future__ import annotations

import struct

import xxhash

from kvstore.layout import TABLE_OFFSET, SlotLayout


class StripProof:
    """What a vouched head says of a payload, and how much of that has been seen to be so."""

    def __init__(self, head: memoryview, tokens: int, layout: SlotLayout) -> None:
        self._wanted = struct.unpack_from(f"<{layout.strips}Q", head, TABLE_OFFSET)
        self._stride, self._size = layout.strip_stride, layout.strip_bytes(tokens)
        self._at = 0  # of the payload, bytes
        self._hash = xxhash.xxh3_64()

    def take(self, piece: memoryview) -> bool:
        """The next bytes; False once a strip that ends in them has another hash."""
        start = 0
        while start < len(piece):
            strip, within = divmod(self._at, self._stride)
            if strip == len(self._wanted):
                return True  # what fills the slot up to its end belongs to no strip
            # [0, size) of a stride is the strip, [size, stride) what a short block leaves unused.
            end = self._size if within < self._size else self._stride
            count = min(end - within, len(piece) - start)
            if within < self._size:
                self._hash.update(piece[start : start + count])
                if within + count == self._size:
                    if (self._hash.intdigest() or 1) != self._wanted[strip]:
                        return False
                    self._hash.reset()
            start, self._at = start + count, self._at + count
        return True
