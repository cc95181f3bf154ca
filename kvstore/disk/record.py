"""What the index of a disk says of one block: all that a node must know to serve it again."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FIELDS = struct.Struct("<QQ16s32s32sIIQ16s")
RECORD_BYTES = _FIELDS.size


@dataclass(frozen=True, slots=True)
class Record:
    """The value under a block's stored key."""

    place: int  # of the slot: its offset as if the disk's files were one
    generation: int
    root: bytes
    parent: bytes  # stored key; zeros where there is none
    namespace: bytes
    group: int
    tokens: int
    origin: int
    tenant: bytes  # its digest

    def pack(self) -> bytes:
        return _FIELDS.pack(
            self.place,
            self.generation,
            self.root,
            self.parent,
            self.namespace,
            self.group,
            self.tokens,
            self.origin,
            self.tenant,
        )

    @classmethod
    def parse(cls, value: bytes) -> Record | None:
        """None for what no node of this format wrote."""
        return cls(*_FIELDS.unpack(value)) if len(value) == RECORD_BYTES else None
