"""The compiled loops over a batch's strips: one call, without the interpreter or its lock.

A table entry is published after the bytes it vouches for, never before, and is never zero. Nothing
here checks a size: `strips` has.

Importing compiles, or loads what an earlier import compiled: no request waits for a compiler.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import njit

from .accumulator import SIDE, stack_lanes
from .codec_move import decode_strip, desk_words, encode_strip
from .inner import BORROWED, KEPT, OWN, inner
from .memory import fence, load_published, publish
from .strip_entry import entry_of
from .strip_move import (
    LINE,
    Slot,
    Steps,
    beside,
    finished,
    gather_heads,
    move_strip,
    size_of,
)
from .xxh3 import U, xxh3_64
from .xxh3_128 import xxh3_128


@inner
def gather_layer(
    lanes: Any, arena: Any, payload: Any, entries: Any, layer: Any, base: Any, table: Any,
    steps: Any, slot: Any, start: Any, tokens: Any, group: Any, onward: Any,
) -> None:  # fmt: skip
    """A layer's strips of a block into their slot, as many heads at once as have lanes."""
    n = tokens * slot.parts * slot.run_bytes
    for first in range(0, slot.head_count, SIDE):
        heads = min(SIDE, slot.head_count - first)
        row = (slot.layer_first + layer) * slot.kv_heads + slot.head_first + first
        strip, entry = arena + U(payload + row * slot.strip_stride), arena + U(entries + 8 * row)
        gather_heads(
            lanes, strip, base + U(first * steps.head), table, steps, slot,
            start, tokens, heads, group, onward,
        )  # fmt: skip
        fence()
        for head in range(heads):
            done = finished(lanes + U(head * LINE), strip + U(head * slot.strip_stride), n)
            publish(entry + U(8 * head), entry_of(done))


types: Any = numba.types
SLOT, STEPS = (types.NamedUniTuple(types.int64, len(t._fields), t) for t in (Slot, Steps))
ADDRESS, WORDS = types.uint64, types.uint64[::1]
INTS, FLAGS = types.int64[::1], types.boolean[::1]


@njit(
    types.void(ADDRESS, SLOT, STEPS, WORDS, INTS, INTS, INTS, INTS, INTS, types.boolean, FLAGS),
    nogil=True, cache=KEPT, **OWN,
)  # fmt: skip
def transfer(
    arena: Any, slot: Any, steps: Any, layers: Any, payloads: Any, tables: Any,
    tokens: Any, starts: Any, block_table: Any, outward: Any, good: Any,
) -> None:  # fmt: skip
    """Inward: engine to slots, publishing entries. Outward: slots to engine, until one differs."""
    lanes, table = stack_lanes(), U(block_table.ctypes.data)
    desk, group = np.empty(desk_words(slot), np.uint64), beside(steps, slot)
    for i in range(len(payloads)):
        good[i] = True
        for layer in range(slot.layer_count):
            if group and slot.codec == 0 and not outward:
                onward = U(0)
                if layer + 1 < slot.layer_count:
                    onward = layers[layer + 1] - layers[layer]
                gather_layer(
                    lanes, arena, payloads[i], tables[i], layer, layers[layer], table, steps, slot,
                    starts[i], tokens[i], group, onward,
                )  # fmt: skip
                continue
            for head in range(slot.head_count):
                if not good[i]:
                    break
                row = (slot.layer_first + layer) * slot.kv_heads + slot.head_first + head
                entry = arena + U(tables[i] + 8 * row)
                strip = arena + U(payloads[i] + row * slot.strip_stride)
                base = layers[layer] + U(head * steps.head)
                promised = load_published(entry)
                if outward and promised == U(0):
                    good[i] = False
                    continue
                if slot.codec == 0:
                    strip_hash = move_strip(
                        lanes, strip, base, table, steps, slot, starts[i], tokens[i], outward
                    )
                elif outward:
                    strip_hash = decode_strip(
                        lanes, strip, base, table, steps, slot, starts[i], tokens[i]
                    )
                else:
                    strip_hash = encode_strip(
                        lanes, desk, strip, base, table, steps, slot, starts[i], tokens[i]
                    )
                found = entry_of(strip_hash)
                if outward:
                    good[i] = found == promised
                else:
                    fence()
                    publish(entry, found)
    fence()


@njit(types.void(ADDRESS, SLOT, INTS, INTS, INTS, FLAGS), nogil=True, cache=KEPT, **BORROWED)
def verify(arena: Any, slot: Any, payloads: Any, tables: Any, tokens: Any, good: Any) -> None:
    lanes = stack_lanes()
    for i in range(len(payloads)):
        good[i] = True
        n = size_of(tokens[i], slot.parts, slot.code_bytes, slot.group_tokens)
        for layer in range(slot.layer_first, slot.layer_first + slot.layer_count):
            for head in range(slot.head_first, slot.head_first + slot.head_count):
                if good[i]:
                    row = layer * slot.kv_heads + head
                    strip = arena + U(payloads[i] + row * slot.strip_stride)
                    promised = load_published(arena + U(tables[i] + 8 * row))
                    good[i] = promised != U(0) and promised == entry_of(xxh3_64(strip, n, lanes))


@njit(types.void(ADDRESS, SLOT, INTS, INTS), nogil=True, cache=KEPT, **BORROWED)
def written(arena: Any, slot: Any, tables: Any, layers: Any) -> None:
    for i in range(len(tables)):
        layers[i] = slot.layer_count
        row = slot.layer_first * slot.kv_heads + slot.head_first
        for strip in range(slot.layer_count * slot.head_count):
            layer, head = divmod(strip, slot.head_count)
            entry = U(tables[i] + 8 * (row + layer * slot.kv_heads + head))
            if load_published(arena + entry) == U(0):
                layers[i] = layer
                break


@njit(
    types.void(ADDRESS, INTS, types.int64, types.uint64[:, ::1]), nogil=True, cache=KEPT, **BORROWED
)
def roots(arena: Any, offsets: Any, size: Any, words: Any) -> None:
    """High word, then low: the order of a canonical digest."""
    lanes = stack_lanes()
    for i in range(len(offsets)):
        low, high = xxh3_128(arena + U(offsets[i]), size, lanes)
        words[i, 0], words[i, 1] = high, low


@njit(types.void(WORDS, INTS, WORDS), nogil=True, cache=KEPT, **BORROWED)
def entries(addresses: Any, sizes: Any, found: Any) -> None:
    lanes = stack_lanes()
    for i in range(len(addresses)):
        found[i] = entry_of(xxh3_64(addresses[i], sizes[i], lanes))
