"""Handles: opaque, sealed claims on a slot. The node that made one checks it without a table.

A handle binds epoch, direction, holder, expiry, and a window or pin by its serial, which no other
ever has; or, of a hand-off, the slot and its generation. The sealing key is drawn anew at each
start, so nothing made before a restart, by another node, or by a caller passes. It begins with its
node's tag, by which another node finds whom to ask.

What one call makes has consecutive serials and is sealed at once: the MACs are consecutive pieces
of one keyed BLAKE3 stream, of all that these handles have in common. So each is checked by itself
by looking at its place in the stream, and those that come back together at the cost of one.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from kvstore.errors import NotYours
from kvstore.limits import HANDLE_BYTES_MAX, RPC_KEYS_MAX

# epoch, direction, session, expiry, generation, first serial of the call: what a call's have in
# common. Then each one's serial and MAC.
_COMMON = struct.Struct("<QBQdQQ")
_MAC_BYTES = 16
TAG_BYTES = 8
_COMMON_BYTES = TAG_BYTES + _COMMON.size
_HANDLE = np.dtype([("common", f"V{_COMMON_BYTES}"), ("serial", "<u8"), ("mac", f"V{_MAC_BYTES}")])
HANDLE_BYTES = _HANDLE.itemsize
assert HANDLE_BYTES <= HANDLE_BYTES_MAX


def node_tag(node_id: str) -> bytes:
    """What the handles of a node begin with."""
    return hashlib.blake2b(node_id.encode(), digest_size=TAG_BYTES).digest()


def tag_of(handle: bytes) -> bytes:
    """Whose handle it says it is."""
    return handle[:TAG_BYTES]


class Direction(enum.IntEnum):
    WRITE = 1  # a write window
    READ = 2  # a pin
    HAND_OFF = 3  # any session of the tenant may open the block with it while it is written


_DIRECTIONS = {int(one): one for one in Direction}


class Claim(NamedTuple):
    serial: int  # of the window or pin; of a hand-off, the offset of the slot's head
    direction: Direction
    session: int  # 0 for a hand-off: whoever the writer gave it to
    expires: float  # owner's monotonic seconds; for a window, never
    generation: int = 0  # of a hand-off's slot


class Handles:
    """Makes and checks the handles of one node process."""

    def __init__(self, epoch: int, node_id: str = "") -> None:
        self.tag, self._key = node_tag(node_id), secrets.token_bytes(32)
        self.renew(epoch)

    def renew(self, epoch: int) -> None:
        """Hand-offs made until now have outlived what they are for. Other handles end with their
        sessions."""
        self._epoch = epoch

    def seal(self, claim: Claim) -> bytes:
        return self.seal_all(claim, 1)[0]

    def seal_all(self, first: Claim, count: int) -> list[bytes]:
        """Handles of a claim and of those with the `count - 1` serials after its own."""
        sealed = self._sealed(self._common(first), first.serial, count, 0)
        return [sealed[at : at + HANDLE_BYTES] for at in range(0, len(sealed), HANDLE_BYTES)]

    def open(self, handle: bytes, direction: Direction, where: str) -> Claim:
        """The claim of a handle; `NotYours` if this process did not make it for this use."""
        if len(handle) != HANDLE_BYTES:
            raise NotYours(f"{where} is {len(handle)} bytes; a handle has {HANDLE_BYTES}")
        claim = self._run((handle,))
        if claim is None:
            raise NotYours(f"{where} was not made by this node since it started")
        if claim.direction != direction:
            was, want = claim.direction.name, direction.name
            raise NotYours(f"{where} is a {was} handle; this call takes a {want} handle")
        return claim

    def astray(self, handle: bytes) -> bool:
        """Whether it says that another node made it, or this one before it was started anew, or
        held for dead: then what it was for is not here, be that true or not."""
        if len(handle) != HANDLE_BYTES:
            return False
        return (tag_of(handle), _COMMON.unpack_from(handle, TAG_BYTES)[0]) != (
            self.tag,
            self._epoch,
        )

    def open_run(self, handles: Sequence[bytes], direction: Direction) -> Claim | None:
        """The first's claim, where all were made by one call for this and stand as it made them,
        without a gap; None where each is to be opened by itself, to have what it is or is not."""
        claim = self._run(handles) if handles and len(handles[0]) == HANDLE_BYTES else None
        return claim if claim is not None and claim.direction is direction else None

    def _run(self, handles: Sequence[bytes]) -> Claim | None:
        """The claim of the first handle, if these are what this process makes of it and of those
        after it."""
        first, common = handles[0], handles[0][:_COMMON_BYTES]
        _, made_for, session, expires, generation, begin = _COMMON.unpack_from(first, TAG_BYTES)
        serial = int.from_bytes(first[_COMMON_BYTES:-_MAC_BYTES], "little")
        if not 0 <= serial - begin < RPC_KEYS_MAX:
            return None  # no call makes so many
        known = self._sealed(common, serial, len(handles), serial - begin)
        if not hmac.compare_digest(b"".join(handles), known):
            return None
        return Claim(serial, _DIRECTIONS[made_for], session, expires, generation)

    def _common(self, first: Claim) -> bytes:
        one = first
        return self.tag + _COMMON.pack(
            self._epoch, one.direction, one.session, one.expires, one.generation, one.serial
        )

    def _sealed(self, common: bytes, serial: int, count: int, place: int) -> bytes:
        """Handles with these serials, one after the other; `place` is the first's in its call."""
        stream = blake3(common, key=self._key).digest(_MAC_BYTES * count, seek=_MAC_BYTES * place)
        if count == 1:
            return common + serial.to_bytes(8, "little") + stream
        made = np.empty(count, _HANDLE)
        made["common"] = np.void(common)
        # Forged ones may begin at the last serial there is: then these wrap, and are nobody's.
        made["serial"] = np.uint64(serial) + np.arange(count, dtype=np.uint64)
        made["mac"] = np.frombuffer(stream, f"V{_MAC_BYTES}")
        return made.tobytes()
