"""How fingerprints and tiers travel: packed, little endian, and checked before they are used.

What comes is copied out of its message. Loops are compiled for each type of array by itself, and
one that may not be written, as a message's bytes, is another type: whoever hears of the first
block would wait for a compiler.
"""

from __future__ import annotations

import numpy as np

from kvstore.core.fingerprints import TIERS_MAX, Prints, Tiers
from kvstore.errors import Invalid
from kvstore.limits import FOLLOW_ENTRIES_MAX, RPC_KEYS_MAX
from kvstore.wire.v1 import directory_pb2 as pb

_PRINT_BYTES = 8


def packed(prints: Prints, tiers: Tiers, sequence: int = 0) -> pb.FollowReply.Entries:
    """One message of these blocks."""
    raw = prints.astype("<u8", copy=False).tobytes()
    return pb.FollowReply.Entries(sequence=sequence, fingerprints=raw, tiers=tiers.tobytes())


def unpacked(entries: pb.FollowReply.Entries) -> tuple[Prints, Tiers]:
    """The blocks of a message, as it says. Raises `Invalid`."""
    raw, tiers = entries.fingerprints, np.frombuffer(entries.tiers, np.uint8).copy()
    if len(raw) != _PRINT_BYTES * len(tiers) or len(tiers) > FOLLOW_ENTRIES_MAX:
        raise Invalid(
            f"{len(raw)} bytes of fingerprints and {len(tiers)} of tiers: 8 and 1 for each block, "
            f"and at most {FOLLOW_ENTRIES_MAX} blocks"
        )
    if len(tiers) and tiers.max() > TIERS_MAX:
        raise Invalid(f"tiers {tiers.max()}: the sum of DRAM (1), SSD (2) and HBM (4)")
    return _prints(raw), tiers


def asked(fingerprints: bytes) -> Prints:
    """What a Holders call asks for. Raises `Invalid`."""
    count, rest = divmod(len(fingerprints), _PRINT_BYTES)
    if rest or not 0 < count <= RPC_KEYS_MAX:
        raise Invalid(
            f"{len(fingerprints)} bytes of fingerprints: send 1 to {RPC_KEYS_MAX}, 8 bytes each"
        )
    return _prints(fingerprints)


def _prints(raw: bytes) -> Prints:
    return np.frombuffer(raw, "<u8").astype(np.uint64)
