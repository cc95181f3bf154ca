"""Where every byte of a block lies in its slot.

Slot = head, then payload. The payload is head-major, `[layer][kv head][token][K then V]`, so a head
range of a layer is one run whatever the tensor-parallel degree; under a codec a strip is written as
`kvstore.codec` says. The head holds what the node says
of the slot (generation, state, root), the block's identity, and the strip table:

    0    magic u64 | 8 generation u64 | 16 state u32 | 20 pad | 32 root 16 B
    48   on a disk: place u64, BLAKE3 of the 56 bytes before it, keyed with the path's id, 8 B;
         in memory zeros
    64   identity: stored key 32 B, namespace 32 B, group u32, tokens u32, origin u64,
         parent 32 B (zeros: none), tenant's digest 16 B, zeros to 256
    256  strip table: u64 a strip, xxh3-64 of its bytes (0 kept as 1); 0 = not written yet

The root is xxh3-128 over identity and table, so it vouches for every byte and for whose they are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from kvstore.codec import Coding
from kvstore.errors import OutOfRange
from kvstore.spec import KVSpec

SLOT_MAGIC = 0x3130544F_4C53504D  # "MPSLOT01"
GENERATION_OFFSET = 8
STATE_OFFSET = 16
ROOT_OFFSET = 32
PLACE_OFFSET = 48
IDENTITY_OFFSET = 64
TABLE_OFFSET = 256
SLOT_ALIGN = 4096  # what O_DIRECT and page registration want

HEAD = struct.Struct("<QQI12x16sQQ32s32sIIQ32s16s64x")  # the head up to the table
assert HEAD.size == TABLE_OFFSET


@dataclass(frozen=True, slots=True)
class Fragment:
    """What one rank moves: layers [layer_first, +layers) of KV heads [head_first, +heads)."""

    layer_first: int
    layers: int
    head_first: int
    heads: int

    def __str__(self) -> str:
        layers = f"layers {self.layer_first}..{self.layer_first + self.layers - 1}"
        return f"{layers} of heads {self.head_first}..{self.head_first + self.heads - 1}"

    @property
    def strips(self) -> int:
        return self.layers * self.heads

    def covers(self, other: Fragment) -> bool:
        return (
            self.layer_first <= other.layer_first
            and other.layer_first + other.layers <= self.layer_first + self.layers
            and self.head_first <= other.head_first
            and other.head_first + other.heads <= self.head_first + self.heads
        )

    def overlaps(self, other: Fragment) -> bool:
        return (
            self.layer_first < other.layer_first + other.layers
            and other.layer_first < self.layer_first + self.layers
            and self.head_first < other.head_first + other.heads
            and other.head_first < self.head_first + self.heads
        )


@dataclass(frozen=True)
class SlotLayout:
    """Sizes and offsets of the slots of one (namespace, group). What follows from its fields is
    worked out once: every block that passes asks for it."""

    layers: int
    kv_heads: int
    block_tokens: int
    parts: int
    run_bytes: int  # of one part of a token at the engine
    coding: Coding | None = None  # None: slots hold what engines have

    @classmethod
    def of(cls, spec: KVSpec, group: int) -> SlotLayout:
        g = spec.groups[group]
        heads, tokens = g.kv_heads, g.block_tokens
        runs = (g.parts, spec.run_bytes(group))
        return cls(len(g.layers), heads, tokens, *runs, spec.coding)

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of a token in a strip. A coded strip has none to say: tokens share scales."""
        assert self.coding is None, "the size of a coded strip is strip_bytes(tokens)"
        return self.parts * self.run_bytes

    @cached_property
    def strips(self) -> int:
        return self.layers * self.kv_heads

    @cached_property
    def strip_stride(self) -> int:
        return self.strip_bytes(self.block_tokens)

    @cached_property
    def head_bytes(self) -> int:
        return _aligned(TABLE_OFFSET + 8 * self.strips)

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of a full block."""
        return self.strips * self.strip_stride

    @cached_property
    def place_bytes(self) -> int:
        """From one full block to the next where blocks lie side by side: each begins on a word."""
        return -(-self.payload_bytes // 8) * 8

    @cached_property
    def slot_bytes(self) -> int:
        return self.head_bytes + _aligned(self.payload_bytes)

    @cached_property
    def root_bytes(self) -> int:
        """Bytes the root covers, from IDENTITY_OFFSET on."""
        return TABLE_OFFSET - IDENTITY_OFFSET + 8 * self.strips

    @cached_property
    def sent_bytes(self) -> int:
        """Bytes of a full block on its way to another node: its payload, and what that is."""
        return self.root_bytes + self.payload_bytes

    @cached_property
    def whole(self) -> Fragment:
        return Fragment(0, self.layers, 0, self.kv_heads)

    def strip_bytes(self, tokens: int) -> int:
        """Bytes of each strip of a block of `tokens` tokens: what is hashed, and what travels."""
        if self.coding is None:
            return tokens * self.token_bytes
        return self.coding.strip_bytes(tokens, self.parts, self.run_bytes)

    def block_bytes(self, tokens: int) -> int:
        """Dense bytes of a block of `tokens` tokens, as Put and Get stream them."""
        return self.strips * self.strip_bytes(tokens)

    def runs(self, tokens: int, fragment: Fragment) -> list[tuple[int, int]]:
        """(offset in the payload, bytes) of a fragment's strips, those that touch as one run."""
        if tokens == self.block_tokens and fragment.heads == self.kv_heads:
            layer_bytes = self.kv_heads * self.strip_stride
            return [(fragment.layer_first * layer_bytes, fragment.layers * layer_bytes)]
        size, stride, found = self.strip_bytes(tokens), self.strip_stride, [(0, 0)]
        for layer in range(fragment.layer_first, fragment.layer_first + fragment.layers):
            first = layer * self.kv_heads + fragment.head_first
            for strip in range(first, first + fragment.heads):
                at, length = found[-1]
                if at + length == strip * stride and length:
                    found[-1] = (at, length + size)
                else:
                    found.append((strip * stride, size))
        return found[1:]

    def check(self, fragment: Fragment) -> Fragment:
        """`fragment` if it lies within the block, else `OutOfRange` saying what is there."""
        f = fragment
        if f.layers < 1 or f.layer_first < 0 or f.layer_first + f.layers > self.layers:
            raise OutOfRange(f"{f}: layer out of range, the block has layers 0..{self.layers - 1}")
        if f.heads < 1 or f.head_first < 0 or f.head_first + f.heads > self.kv_heads:
            raise OutOfRange(f"{f}: head out of range, the block has heads 0..{self.kv_heads - 1}")
        return f


def _aligned(size: int) -> int:
    return -(-size // SLOT_ALIGN) * SLOT_ALIGN
