"""XXH3-64 (seed 0) in Triton, bit for bit what `kernels.xxh3` computes, of whole 64-bit words.

A block of 1 KiB is absorbed at once: what its sixteen stripes add to the eight lanes is a sum, and
its order does not matter; only the scrambling between blocks is one after the other. Messages are
of 24 bytes or more, a multiple of 8: what a strip of KV is.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
from __future__ import annotations

import functools

import numpy as np
import torch
import triton
import triton.language as tl

from ..accumulator import P32, P64, SECRET, START

BYTES_MIN = 24
LONG = tl.constexpr(241)
P32_1, P64_1 = tl.constexpr(P32[0]), tl.constexpr(P64[0])
MIX_1 = tl.constexpr(0x165667919E3779F9)
KEY_WORDS = tl.constexpr(185)  # the secret's word at each byte offset; then what lanes begin with


@functools.cache
def keys(device: torch.device) -> torch.Tensor:
    """What the kernels look up, as int64: numpy and torch have little to do with uint64."""
    secret = [int.from_bytes(SECRET[i : i + 8], "little") for i in range(185)]
    both = np.array([*secret, *START], np.uint64)
    return torch.from_numpy(both.view(np.int64)).to(device)


@triton.jit
def word(at):
    """The 64-bit words at these pointers to int64."""
    return tl.load(at).to(tl.uint64, bitcast=True)


@triton.jit
def fold(left, right):
    return (left * right) ^ tl.umulhi(left, right)


@triton.jit
def avalanche(h):
    h = (h ^ (h >> 37)) * MIX_1
    return h ^ (h >> 32)


@triton.jit
def neighbours(lanes):
    """(8,) lanes, each in its neighbour's place."""
    even, odd = tl.split(tl.reshape(lanes, (4, 2)))
    return tl.reshape(tl.join(odd, even), (8,))


@triton.jit
def begin(secret):
    return word(secret + KEY_WORDS + tl.arange(0, 8))


@triton.jit
def absorb(lanes, data, secret):
    """All of a block's stripes, (16, 8)."""
    stripe = tl.arange(0, 16)[:, None]
    lane = tl.arange(0, 8)[None, :]
    keyed = data ^ word(secret + 8 * stripe + 8 * lane)
    product = (keyed & 0xFFFFFFFF) * (keyed >> 32)
    return lanes + tl.sum(product, 0) + neighbours(tl.sum(data, 0))


@triton.jit
def absorb_some(lanes, data, stripes, secret):
    """The first `stripes` of (16, 8)."""
    stripe = tl.arange(0, 16)[:, None]
    lane = tl.arange(0, 8)[None, :]
    keyed = data ^ word(secret + 8 * stripe + 8 * lane)
    product = (keyed & 0xFFFFFFFF) * (keyed >> 32)
    nothing = tl.zeros_like(data)
    there = stripe < stripes
    sums = tl.sum(tl.where(there, product, nothing), 0)
    return lanes + sums + neighbours(tl.sum(tl.where(there, data, nothing), 0))


@triton.jit
def absorb_last(lanes, data, secret):
    """The message's last 64 bytes, (8,), which may have been absorbed before."""
    keyed = data ^ word(secret + 121 + 8 * tl.arange(0, 8))
    return lanes + (keyed & 0xFFFFFFFF) * (keyed >> 32) + neighbours(data)


@triton.jit
def scramble(lanes, secret):
    mixed = lanes ^ (lanes >> 47) ^ word(secret + 128 + 8 * tl.arange(0, 8))
    return mixed * P32_1


@triton.jit
def finish(lanes, size, secret):
    """The hash of a long message of so many bytes."""
    keyed = lanes ^ word(secret + 11 + 8 * tl.arange(0, 8))
    even, odd = tl.split(tl.reshape(keyed, (4, 2)))
    return avalanche(tl.sum(fold(even, odd), 0) + size.to(tl.uint64) * P64_1)


@triton.jit
def mix(at, secret, offset):
    """Two words at a pointer."""
    return fold(word(at) ^ word(secret + offset), word(at + 1) ^ word(secret + offset + 8))


@triton.jit
def middle(at, size, secret):
    """The hash of a message of 17 to 240 bytes that lies in one run, at a pointer to int64."""
    h = size.to(tl.uint64) * P64_1
    end = at + size // 8
    if size <= 128:
        for i in range((size - 1) // 32 + 1):
            h += mix(at + 2 * i, secret, 32 * i) + mix(end - 2 * i - 2, secret, 32 * i + 16)
        h = avalanche(h)
    else:
        for i in range(8):
            h += mix(at + 2 * i, secret, 16 * i)
        h = avalanche(h)
        for i in range(8, size // 16):
            h += mix(at + 2 * i, secret, 16 * (i - 8) + 3)
        h = avalanche(h + mix(end - 2, secret, 119))
    return h
