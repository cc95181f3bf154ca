"""XXH3-128 (seed 0) of any bytes at an address, as its low and high words.

The long path shares its lanes with XXH3-64: only what is merged out of them at the end differs.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

from .inner import inner
from .memory import byteswap, load_32, load_64, product
from .xxh3 import (
    KEYS,
    LONG,
    LOW_32,
    MIX_2,
    P32_2,
    P64_1,
    P64_2,
    P64_4,
    U,
    absorb,
    avalanche,
    avalanche_xxh64,
    ends_of_three,
    merge,
    mix,
    shifted,
)


@inner
def short_128(at: Any, n: Any) -> Any:
    """Up to 16 bytes."""
    size = U(n)
    if n > 8:
        first, last = load_64(at), load_64(at + size - U(8))
        low, high = product(first ^ last ^ KEYS[32] ^ KEYS[40], P64_1)
        low += (size - U(1)) << U(54)
        last ^= KEYS[48] ^ KEYS[56]
        high += last + (last & LOW_32) * (P32_2 - U(1))
        low ^= byteswap(high)
        mixed, carried = product(low, P64_2)
        return avalanche(mixed), avalanche(carried + high * P64_2)
    if n > 3:
        word = load_32(at) + (load_32(at + size - U(4)) << U(32))
        low, high = product(word ^ KEYS[16] ^ KEYS[24], P64_1 + (size << U(2)))
        high += low << U(1)
        low = shifted(low ^ (high >> U(3)), 35) * MIX_2
        return shifted(low, 28), avalanche(high)
    if n > 0:
        word = ends_of_three(at, n)
        turned = byteswap(word) >> U(32)
        turned = ((turned << U(13)) | (turned >> U(19))) & LOW_32
        low = word ^ ((KEYS[0] ^ KEYS[4]) & LOW_32)
        return avalanche_xxh64(low), avalanche_xxh64(turned ^ ((KEYS[8] ^ KEYS[12]) & LOW_32))
    return avalanche_xxh64(KEYS[64] ^ KEYS[72]), avalanche_xxh64(KEYS[80] ^ KEYS[88])


@inner
def mix_pair(low: Any, high: Any, left: Any, right: Any, secret: Any, closing: Any) -> Any:
    """Fold 16 bytes at `left` and at `right` into both words."""
    low = (low + mix(left, secret)) ^ (load_64(right) + load_64(right + U(8)))
    high = (high + mix(right, closing)) ^ (load_64(left) + load_64(left + U(8)))
    return low, high


@inner
def middle_128(at: Any, n: Any) -> Any:
    """17 to 240 bytes."""
    low, high = U(n) * P64_1, U(0)
    end = at + U(n)
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            left, right = at + U(16 * i), end - U(16 * i + 16)
            low, high = mix_pair(low, high, left, right, 32 * i, 32 * i + 16)
    else:
        for i in range(0, 128, 32):
            low, high = mix_pair(low, high, at + U(i), at + U(i + 16), i, i + 16)
        low, high = avalanche(low), avalanche(high)
        for i in range(128, n - 31, 32):
            low, high = mix_pair(low, high, at + U(i), at + U(i + 16), i - 125, i - 109)
        low, high = mix_pair(low, high, end - U(16), end - U(32), 103, 119)
    mixed = low * P64_1 + high * P64_4 + U(n) * P64_2
    return avalanche(low + high), U(0) - avalanche(mixed)


@inner
def xxh3_128(at: Any, n: Any, lanes: Any) -> Any:
    """The low and high words of the hash of the `n` bytes (int64) at an address (uint64)."""
    if n >= LONG:
        absorb(lanes, at, n)
        return merge(lanes, 11, U(n) * P64_1), merge(lanes, 117, ~(U(n) * P64_2))
    if n > 16:
        return middle_128(at, n)
    return short_128(at, n)
