"""The prints of what a tenant's blocks are stored under, as conductors look for them: those of
`block.stored_keys`, without the keys. Of a long prompt these take as long as its decision."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from kvstore.core.fingerprints import Prints
from kvstore.kernels import stored_prints as loops
from kvstore.limits import HASH_BYTES

_GROUP = struct.Struct("<I")
_WORD = np.dtype("<u4")


def stored_prints(secret: bytes, namespace: bytes, group: int, hashes: Sequence[bytes]) -> Prints:
    """`fingerprints(stored_keys(...))`; secret, namespace and hashes have 32 bytes each."""
    prints = np.empty(len(hashes), np.uint64)
    own = np.frombuffer(b"".join(hashes), _WORD).reshape(-1, loops.OWN_WORDS)
    assert len(own) == len(hashes), f"a hash has {HASH_BYTES} bytes"
    key = np.frombuffer(secret, _WORD)
    begin = np.frombuffer(namespace + _GROUP.pack(group), _WORD)
    assert (len(key), len(begin)) == (8, loops.BEGIN_WORDS), (
        "a secret and a namespace have 32 bytes"
    )
    state, words = np.empty((2, loops.WORDS, loops.LANES), np.uint32)
    loops.stored_prints(key, begin, own, state, words, prints)
    return prints
