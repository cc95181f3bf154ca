"""XXH3-64 (seed 0) in Triton, bit for bit what `kernels.xxh3` computes, of whole 64-bit words.

A block of 1 KiB is absorbed at once: what its sixteen stripes add to the eight lanes is a sum, and
its order does not matter; only the scrambling between blocks is one after the other. A word adds to
its neighbour's lane too, so lanes are in two halves, even and odd: a thread that has a pair of
words has both, and asks no other. Messages are of 24 bytes or more, a multiple of 8: what a strip
of KV is.
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
def pairs(at, STEP: tl.constexpr):
    """Of eight words, STEP apart, those of even lanes and those of odd ones, (4, 1) each."""
    even = at + 2 * STEP * tl.arange(0, 4)[:, None]
    return word(even), word(even + STEP)


@triton.jit
def begin(secret):
    return pairs(secret + KEY_WORDS, 1)


@triton.jit
def stripe_keys(secret):
    """What a block's stripes are mixed with, (4, 16, 2)."""
    each = 2 * tl.arange(0, 4)[:, None] + tl.arange(0, 16)[None, :]
    return word(secret + 8 * (each[:, :, None] + tl.arange(0, 2)[None, None, :]))


@triton.jit
def _summed(data, keys):
    """What each pair of words adds to the two lanes, (4, 16) each."""
    keyed = data ^ keys
    product = (keyed & 0xFFFFFFFF) * (keyed >> 32)
    even_product, odd_product = tl.split(product)
    even_data, odd_data = tl.split(data)
    return even_product + odd_data, odd_product + even_data


@triton.jit
def absorb(even, odd, data, keys, scrambles):
    """Lanes after a block, (4, 16, 2), that has more behind it."""
    even_added, odd_added = _summed(data, keys)
    even += tl.sum(even_added, 1, keep_dims=True)
    odd += tl.sum(odd_added, 1, keep_dims=True)
    return scramble(even, scrambles[0]), scramble(odd, scrambles[1])


@triton.jit
def absorb_some(even, odd, data, left, keys, scrambles):
    """The same of a block that has `left` words there, and behind it: the last, if no more than it
    takes, and none, if fewer than one."""
    even_added, odd_added = _summed(data, keys)
    counts = 8 * (tl.arange(0, 16)[None, :] + 1) < left
    even += tl.sum(tl.where(counts, even_added, tl.zeros_like(even_added)), 1, keep_dims=True)
    odd += tl.sum(tl.where(counts, odd_added, tl.zeros_like(odd_added)), 1, keep_dims=True)
    if left > 128:
        even, odd = scramble(even, scrambles[0]), scramble(odd, scrambles[1])
    return even, odd


@triton.jit
def _added(data, other, key):
    """What a lane has of a word and of its neighbour's."""
    keyed = data ^ key
    return (keyed & 0xFFFFFFFF) * (keyed >> 32) + other


@triton.jit
def absorb_last(even, odd, at, secret):
    """The message's last 64 bytes, at a pointer to int64; they may have been absorbed before."""
    data, keys = pairs(at, 1), pairs(secret + 121, 8)
    even += _added(data[0], data[1], keys[0])
    odd += _added(data[1], data[0], keys[1])
    return even, odd


@triton.jit
def scramble(lanes, key):
    return (lanes ^ (lanes >> 47) ^ key) * P32_1


@triton.jit
def finish(even, odd, size, secret):
    """The hash of a long message of so many bytes."""
    keys = pairs(secret + 11, 8)
    mixed = fold(even ^ keys[0], odd ^ keys[1])
    return avalanche(tl.sum(tl.sum(mixed, 1), 0) + size.to(tl.uint64) * P64_1)


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
