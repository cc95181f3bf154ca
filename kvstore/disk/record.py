"""What the index of a disk says of one block: all that a node must know to serve it again."""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

import numpy as np

_FIELDS = struct.Struct("<QQ16s32s32sIIQ16s")
RECORD_BYTES = _FIELDS.size

# The same as numpy reads many of them; `owner` is namespace and group in one.
RECORDS = np.dtype(
    [
        *(("place", "<u8"), ("generation", "<u8"), ("root", "S16"), ("parent", "S32")),
        *(("owner", "S36"), ("tokens", "<u4"), ("origin", "<u8"), ("tenant", "S16")),
    ]
)
assert RECORDS.itemsize == RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Record:
    """The value under a block's stored key."""

    place: int  # of the slot: its offset as if the files of its path were one
    generation: int
    root: bytes
    parent: bytes  # stored key; zeros where there is none
    namespace: bytes
    group: int
    tokens: int
    origin: int
    tenant: bytes  # its digest

    def pack(self) -> bytes:
        return _FIELDS.pack(*astuple(self))

    @classmethod
    def parse(cls, value: bytes) -> Record | None:
        """None for what no node of this format wrote."""
        return cls(*_FIELDS.unpack(value)) if len(value) == RECORD_BYTES else None
