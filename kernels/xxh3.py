"""XXH3-64 and XXH3-128 (seed 0) of any bytes at an address, equal to the xxhash library's.

Every length class of the published algorithm is here, so a hash made by a kernel and one made by
the library in Python are one value. Messages over 240 bytes go through `begin`, whole blocks and
`absorb_tail`, which a copy loop may call itself, to hash each block as it passes. The lanes are the
caller's (`stack_lanes`), one set for a batch.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numpy as np

from .accumulator import BLOCK, P32, P64, SECRET, absorb_block, absorb_stripes, begin
from .inner import inner
from .memory import byteswap, load_8, load_32, load_64, product

U = np.uint64
KEYS = np.array([int.from_bytes(SECRET[i : i + 8], "little") for i in range(185)], dtype=U)
"""The secret's word at each byte offset."""
P32_2 = U(P32[1])
P64_1, P64_2, P64_3, P64_4, _ = (U(prime) for prime in P64)
MIX_1, MIX_2 = U(0x165667919E3779F9), U(0x9FB21C651E98DF25)
LOW_32 = U(0xFFFFFFFF)
LONG = 241
"""The shortest message that goes through lanes."""


@inner
def fold(left: Any, right: Any) -> Any:
    low, high = product(left, right)
    return low ^ high


@inner
def shifted(h: Any, by: Any) -> Any:
    return h ^ (h >> U(by))


@inner
def avalanche(h: Any) -> Any:
    return shifted(shifted(h, 37) * MIX_1, 32)


@inner
def avalanche_xxh64(h: Any) -> Any:
    return shifted(shifted(shifted(h, 33) * P64_2, 29) * P64_3, 32)


@inner
def mix(at: Any, secret: Any) -> Any:
    return fold(load_64(at) ^ KEYS[secret], load_64(at + U(8)) ^ KEYS[secret + 8])


@inner
def ends_of_three(at: Any, n: Any) -> Any:
    """A message of 1 to 3 bytes, with its length, as one word."""
    first, middle, last = load_8(at), load_8(at + U(n >> 1)), load_8(at + U(n - 1))
    return (first << U(16)) | (middle << U(24)) | last | (U(n) << U(8))


@inner
def short_64(at: Any, n: Any) -> Any:
    """Up to 16 bytes."""
    size = U(n)
    if n > 8:
        low = load_64(at) ^ KEYS[24] ^ KEYS[32]
        high = load_64(at + size - U(8)) ^ KEYS[40] ^ KEYS[48]
        return avalanche(size + byteswap(low) + high + fold(low, high))
    if n > 3:
        h = (load_32(at + size - U(4)) + (load_32(at) << U(32))) ^ KEYS[8] ^ KEYS[16]
        h ^= ((h << U(49)) | (h >> U(15))) ^ ((h << U(24)) | (h >> U(40)))
        h *= MIX_2
        h = (h ^ ((h >> U(35)) + size)) * MIX_2
        return shifted(h, 28)
    if n > 0:
        return avalanche_xxh64(ends_of_three(at, n) ^ ((KEYS[0] ^ KEYS[4]) & LOW_32))
    return avalanche_xxh64(KEYS[56] ^ KEYS[64])


@inner
def middle_64(at: Any, n: Any) -> Any:
    """17 to 240 bytes."""
    h = U(n) * P64_1
    end = at + U(n)
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            h += mix(at + U(16 * i), 32 * i) + mix(end - U(16 * i + 16), 32 * i + 16)
        return avalanche(h)
    for i in range(8):
        h += mix(at + U(16 * i), 16 * i)
    h = avalanche(h)
    for i in range(8, n // 16):
        h += mix(at + U(16 * i), 16 * (i - 8) + 3)
    return avalanche(h + mix(end - U(16), 119))


@inner
def absorb_tail(lanes: Any, at: Any, n: Any) -> None:
    """Fold what whole blocks leave of n bytes at an address."""
    absorbed = n // BLOCK * BLOCK
    if absorbed < n:
        stripes = U((n - 1 - absorbed) // 64)
        absorb_stripes(lanes, at + U(absorbed), stripes, at + U(n - 64))


@inner
def merge(lanes: Any, secret: Any, h: Any) -> Any:
    for i in range(0, 64, 16):
        h += mix(lanes + U(i), secret + i)
    return avalanche(h)


@inner
def absorb(lanes: Any, at: Any, n: Any) -> None:
    """Fold the whole of a long message."""
    begin(lanes)
    for end in range(BLOCK, n + 1, BLOCK):
        absorb_block(lanes, end == n, at + U(end - BLOCK))
    absorb_tail(lanes, at, n)


@inner
def finish_64(lanes: Any, n: Any) -> Any:
    return merge(lanes, 11, U(n) * P64_1)


@inner
def xxh3_64(at: Any, n: Any, lanes: Any) -> Any:
    """The hash of the `n` bytes (int64) at an address (uint64)."""
    if n >= LONG:
        absorb(lanes, at, n)
        return finish_64(lanes, n)
    if n > 16:
        return middle_64(at, n)
    return short_64(at, n)
