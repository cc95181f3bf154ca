"""The first words of a slot as it lies on a disk: bound to the place they were written to.

They end in a stamp of the words before it, keyed with the id of their path. So of two places, and
of two paths, that hold the same bytes only the right one holds a block; and who does not know the
id, as no caller does, cannot write a payload that passes for a head. What follows them, identity
and strip table, the root vouches for.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash
from blake3 import blake3

from kvstore.block import tenant_digest
from kvstore.core.lifecycle import Slot, State
from kvstore.disk.record import Record
from kvstore.layout import (
    HEAD,
    IDENTITY_OFFSET,
    PLACE_OFFSET,
    ROOT_OFFSET,
    SLOT_MAGIC,
    SlotLayout,
)
from kvstore.limits import ROOT_BYTES

_WORDS = struct.Struct("<QQI12x16sQ")
_STAMP_BYTES = 8


class Address(NamedTuple):
    """A place on one path, wherever the path stands among others."""

    path: bytes  # its id
    place: int  # bytes from the beginning of its first file


def stamped(generation: int, root: bytes, address: Address) -> bytes:
    """The first words of a sealed block there, up to its identity."""
    words = _WORDS.pack(SLOT_MAGIC, generation, int(State.SEALED), root, address.place)
    return words + blake3(words, key=address.path).digest(_STAMP_BYTES)


def identity(slot: Slot) -> bytes:
    """What stands between those and the strip table: whose the bytes are."""
    of_slot = (slot.key, *slot.owner, slot.tokens, slot.origin, slot.parent)
    words = HEAD.pack(0, 0, 0, b"", 0, 0, *of_slot, tenant_digest(slot.tenant))
    return words[IDENTITY_OFFSET:]


def vouched(head: memoryview, root: bytes, layout: SlotLayout) -> bool:
    """Whether identity and strip table are what the root was taken of."""
    identity = head[IDENTITY_OFFSET : IDENTITY_OFFSET + layout.root_bytes]
    return xxhash.xxh3_128_digest(identity) == root


def told(head: memoryview, address: Address) -> Record | None:
    """What a head says of its block, if it was written to that place; the root is to be checked."""
    magic, generation, _, root, *_, namespace, group, tokens, origin, parent, tenant = (
        HEAD.unpack_from(head)
    )
    if magic != SLOT_MAGIC or head[:IDENTITY_OFFSET] != stamped(generation, root, address):
        return None
    return Record(
        *(address.place, generation, root, parent, namespace, group, tokens, origin, tenant)
    )


assert _WORDS.size == PLACE_OFFSET + 8 and ROOT_OFFSET + ROOT_BYTES == PLACE_OFFSET
assert _WORDS.size + _STAMP_BYTES == IDENTITY_OFFSET
