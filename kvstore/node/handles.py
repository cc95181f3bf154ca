"""Handles: opaque, HMAC-sealed claims on a slot. The node that made one checks it without a table.

A handle binds epoch, slot, generation, direction, holder and expiry. The sealing key is drawn anew
at each start, so nothing made before a restart, by another node, or by a caller passes.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass

from kvstore.errors import NotYours

# epoch, serial, slot offset, generation, direction, session, expiry
_CLAIM = struct.Struct("<QQQQBQd")
_MAC_BYTES = 16
HANDLE_BYTES = _CLAIM.size + _MAC_BYTES


class Direction(enum.IntEnum):
    WRITE = 1  # a write window
    READ = 2  # a pin
    HAND_OFF = 3  # any session of the tenant may open the block with it while it is written


@dataclass(frozen=True, slots=True)
class Claim:
    serial: int  # of the window or pin; 0 for a hand-off
    offset: int  # of the slot's head
    generation: int
    direction: Direction
    session: int  # 0 for a hand-off: whoever the writer gave it to
    expires: float  # owner's monotonic seconds; for a window, never


class Handles:
    """Makes and checks the handles of one node process."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._key = secrets.token_bytes(32)

    def seal(self, claim: Claim) -> bytes:
        text = _CLAIM.pack(
            self._epoch,
            claim.serial,
            claim.offset,
            claim.generation,
            claim.direction,
            claim.session,
            claim.expires,
        )
        return text + self._mac(text)

    def open(self, handle: bytes, direction: Direction, where: str) -> Claim:
        """The claim of a handle; `NotYours` if this process did not make it for this use."""
        text, mac = handle[: _CLAIM.size], handle[_CLAIM.size :]
        if len(handle) != HANDLE_BYTES:
            raise NotYours(f"{where} is {len(handle)} bytes; a handle has {HANDLE_BYTES}")
        if not hmac.compare_digest(mac, self._mac(text)):
            raise NotYours(f"{where} was not made by this node since it started")
        _, serial, offset, generation, made_for, session, expires = _CLAIM.unpack(text)
        if made_for != direction:
            was, want = Direction(made_for).name, direction.name
            raise NotYours(f"{where} is a {was} handle; this call takes a {want} handle")
        return Claim(serial, offset, generation, direction, session, expires)

    def _mac(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._key, digest_size=_MAC_BYTES).digest()
