"""Where every byte of a block lies in its slot.

Slot = head, then payload. The payload is head-major, `[layer][kv head][token][K then V]`, so a head
range of a layer is one run whatever the tensor-parallel degree. The head holds what the node says
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


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Sizes and offsets of the slots of one (namespace, group)."""

    layers: int
    kv_heads: int
    block_tokens: int
    parts: int
    run_bytes: int

    @classmethod
    def of(cls, spec: KVSpec, group: int) -> SlotLayout:
        g = spec.groups[group]
        heads, tokens = g.kv_heads, g.block_tokens
        return cls(len(g.layers), heads, tokens, g.parts, spec.run_bytes(group))

    @property
    def token_bytes(self) -> int:
        return self.parts * self.run_bytes

    @property
    def strips(self) -> int:
        return self.layers * self.kv_heads

    @property
    def strip_stride(self) -> int:
        return self.block_tokens * self.token_bytes

    @property
    def head_bytes(self) -> int:
        return _aligned(TABLE_OFFSET + 8 * self.strips)

    @property
    def payload_bytes(self) -> int:
        """Bytes of a full block."""
        return self.strips * self.strip_stride

    @property
    def slot_bytes(self) -> int:
        return self.head_bytes + _aligned(self.payload_bytes)

    @property
    def root_bytes(self) -> int:
        """Bytes the root covers, from IDENTITY_OFFSET on."""
        return TABLE_OFFSET - IDENTITY_OFFSET + 8 * self.strips

    @property
    def whole(self) -> Fragment:
        return Fragment(0, self.layers, 0, self.kv_heads)

    def block_bytes(self, tokens: int) -> int:
        """Dense bytes of a block of `tokens` tokens, as Put and Get stream them."""
        return self.strips * tokens * self.token_bytes

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
