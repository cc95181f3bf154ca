"""XXH3-64 and XXH3-128 (seed 0) of any bytes at an address, equal to the xxhash library's.

Every length class of the published algorithm is here, so a hash made by a kernel and one made by
the library in Python are one value. Messages over 240 bytes go through `begin`, `absorb_block` and
`finish`, which a copy loop may call itself, to hash each block while it is still in cache.
"""

# mypy: allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from .accumulator import SECRET, absorb_block, absorb_stripes
from .memory import U64, byteswap, load_8, load_32, load_64, product

U = np.uint64
KEYS = np.array([int.from_bytes(SECRET[i : i + 8], "little") for i in range(185)], dtype=U)
"""The secret's word at each byte offset."""
P32_1, P32_2, P32_3 = U(0x9E3779B1), U(0x85EBCA77), U(0xC2B2AE3D)
P64_1, P64_2, P64_3 = U(0x9E3779B185EBCA87), U(0xC2B2AE3D27D4EB4F), U(0x165667B19E3779F9)
P64_4, P64_5 = U(0x85EBCA77C2B2AE63), U(0x27D4EB2F165667C5)
MIX_1, MIX_2 = U(0x165667919E3779F9), U(0x9FB21C651E98DF25)
LOW_32 = U(0xFFFFFFFF)
START = np.array([P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1], dtype=U)
SHORT = 240
"""The longest message that is hashed without lanes."""
PAIR = types.UniTuple(U64, 2)
WORDS = types.Array(U64, 1, "C")


@njit(U64(U64, U64), inline="never")
def fold(left: Any, right: Any) -> Any:
    low, high = product(left, right)
    return low ^ high


@njit(U64(U64, types.int64))
def rotate(word: Any, by: Any) -> Any:
    return (word << U(by)) | (word >> U(64 - by))


@njit(U64(U64))
def avalanche(h: Any) -> Any:
    h = (h ^ (h >> U(37))) * MIX_1
    return h ^ (h >> U(32))


@njit(U64(U64))
def avalanche_xxh64(h: Any) -> Any:
    h = (h ^ (h >> U(33))) * P64_2
    h = (h ^ (h >> U(29))) * P64_3
    return h ^ (h >> U(32))


@njit(U64(U64, types.int64))
def mix(at: Any, secret: Any) -> Any:
    return fold(load_64(at) ^ KEYS[secret], load_64(at + U(8)) ^ KEYS[secret + 8])


@njit(types.void(WORDS))
def begin(lanes: Any) -> None:
    for i in range(8):
        lanes[i] = START[i]


@njit(U64(WORDS, types.int64, U64))
def merge(lanes: Any, secret: Any, h: Any) -> Any:
    for i in range(0, 8, 2):
        h += fold(lanes[i] ^ KEYS[secret + 8 * i], lanes[i + 1] ^ KEYS[secret + 8 * i + 8])
    return avalanche(h)


@njit(types.void(WORDS, U64, types.int64, types.int64))
def absorb_tail(lanes: Any, address: Any, absorbed: Any, n: Any) -> None:
    """Fold what is left of n bytes at `address` after `absorbed` bytes of whole blocks."""
    stripes = (n - 1 - absorbed) // 64
    final = address + U(n - 64)
    absorb_stripes(U(lanes.ctypes.data), address + U(absorbed), U(stripes), final)


@njit(U64(WORDS, types.int64))
def finish_64(lanes: Any, n: Any) -> Any:
    return merge(lanes, 11, U(n) * P64_1)


@njit(types.void(WORDS, U64, types.int64))
def absorb(lanes: Any, address: Any, n: Any) -> None:
    """Fold the whole message."""
    begin(lanes)
    home = U(lanes.ctypes.data)
    blocks = (n - 1) // 1024
    for i in range(blocks):
        absorb_block(home, address + U(i * 1024))
    absorb_tail(lanes, address, blocks * 1024, n)


@njit(U64(U64, types.int64, WORDS), nogil=True, cache=True)
def xxh3_64(address: Any, n: Any, lanes: Any) -> Any:
    size = U(n)
    if n > SHORT:
        absorb(lanes, address, n)
        return finish_64(lanes, n)
    return size
