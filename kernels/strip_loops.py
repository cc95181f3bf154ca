"""The compiled loops over strips: a whole batch a call, without the interpreter or its lock.

A strip is moved and hashed in one pass: whole 1 KiB blocks go through registers once, and what the
engine keeps in pieces is hashed from the slot while it is in cache. A table entry is published
after the bytes it vouches for, never before. Nothing here checks a size: `strips` has.

Importing compiles, or loads what an earlier import compiled: no request waits for a compiler.
numba stamps its cache with this file alone, so clear `__pycache__` after changing a file it uses.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from .accumulator import BLOCK, absorb_block, copy_block, stream_block
from .memory import copy_chunk, fence, load_8, load_published, publish, store_8
from .xxh3 import LONG, U, absorb_tail, begin, finish_64, xxh3_64
from .xxh3_128 import xxh3_128

CHUNK = 32


class Slot(NamedTuple):
    """`Geometry`, and the strips of it that a call is about."""

    kv_heads: int
    strip_stride: int
    parts: int
    run_bytes: int
    layer_first: int
    layer_count: int
    head_first: int
    head_count: int


class Steps(NamedTuple):
    """`Pages`, less its addresses."""

    page: int
    head: int
    token: int
    part: int
    page_tokens: int


@njit
def copy_run(target: Any, source: Any, count: Any) -> None:
    done = 0
    while done + CHUNK <= count:
        copy_chunk(target + U(done), source + U(done))
        done += CHUNK
    while done < count:
        store_8(target + U(done), load_8(source + U(done)))
        done += 1


@njit
def move(lanes: Any, strip: Any, done: Any, n: Any, target: Any, source: Any, count: Any) -> None:
    """Copy the `count` bytes that follow the strip's first `done`, and fold what that completes.

    Source or target is the slot, `strip + done`. The last block of n bytes is left unfolded.
    """
    home = U(lanes.ctypes.data)
    while count > 0:
        room = BLOCK - done % BLOCK
        step = min(room, count)
        inner = done + step < n
        if step == BLOCK and inner:
            if target % U(64) == U(0):
                stream_block(home, source, target)
            else:
                copy_block(home, source, target)
        else:
            copy_run(target, source, step)
            if step == room and inner:
                absorb_block(home, strip + U(done + step - BLOCK))
        done += step
        count -= step
        source += U(step)
        target += U(step)


@njit
def move_strip(
    lanes: Any, strip: Any, base: Any, table: Any, steps: Any, slot: Any,
    start: Any, tokens: Any, outward: Any,
) -> Any:  # fmt: skip
    """Move a strip between its slot and the engine's head at `base`, and hash it."""
    joined = slot.parts == 1 or steps.part == slot.run_bytes
    piece = slot.run_bytes * slot.parts if joined else slot.run_bytes
    parts = 1 if joined else slot.parts
    dense = joined and steps.token == piece
    n = tokens * slot.parts * slot.run_bytes
    done, token = 0, start
    begin(lanes)
    while token < start + tokens:
        place = token % steps.page_tokens
        share = min(steps.page_tokens - place, start + tokens - token)
        page = base + U(table[token // steps.page_tokens] * steps.page + place * steps.token)
        count = piece * share if dense else piece
        for i in range(1 if dense else share):
            for part in range(parts):
                far, near = page + U(i * steps.token + part * steps.part), strip + U(done)
                source, target = (near, far) if outward else (far, near)
                move(lanes, strip, done, n, target, source, count)
                done += count
        token += share
    if n < LONG:
        return xxh3_64(strip, n, lanes)
    absorb_tail(lanes, strip, (n - 1) // BLOCK * BLOCK, n)
    return finish_64(lanes, n)


@njit
def entry_of(strip_hash: Any) -> Any:
    """What the table says of a hash: zero is kept for a strip that is not written."""
    return strip_hash if strip_hash != U(0) else U(1)


SLOT, STEPS = (types.NamedUniTuple(types.int64, len(t._fields), t) for t in (Slot, Steps))
ADDRESS, WORDS = types.uint64, types.uint64[::1]
INTS, FLAGS = types.int64[::1], types.boolean[::1]


@njit(
    types.void(ADDRESS, SLOT, STEPS, WORDS, INTS, INTS, INTS, INTS, INTS, types.boolean, FLAGS),
    nogil=True, cache=True,
)  # fmt: skip
def transfer(
    arena: Any, slot: Any, steps: Any, layers: Any, payloads: Any, tables: Any,
    tokens: Any, starts: Any, block_table: Any, outward: Any, good: Any,
) -> None:  # fmt: skip
    """Inward: engine to slots, publishing entries. Outward: slots to engine, until one differs."""
    lanes = np.empty(8, np.uint64)
    for i in range(len(payloads)):
        good[i] = True
        for layer in range(slot.layer_count):
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
                found = entry_of(
                    move_strip(
                        lanes, strip, base, block_table, steps, slot, starts[i], tokens[i], outward
                    )
                )
                if outward:
                    good[i] = found == promised
                else:
                    fence()
                    publish(entry, found)
    fence()


@njit(types.void(ADDRESS, SLOT, INTS, INTS, INTS, FLAGS), nogil=True, cache=True)
def verify(arena: Any, slot: Any, payloads: Any, tables: Any, tokens: Any, good: Any) -> None:
    lanes = np.empty(8, np.uint64)
    for i in range(len(payloads)):
        good[i] = True
        n = tokens[i] * slot.parts * slot.run_bytes
        for layer in range(slot.layer_first, slot.layer_first + slot.layer_count):
            for head in range(slot.head_first, slot.head_first + slot.head_count):
                if good[i]:
                    row = layer * slot.kv_heads + head
                    strip = arena + U(payloads[i] + row * slot.strip_stride)
                    promised = load_published(arena + U(tables[i] + 8 * row))
                    good[i] = promised != U(0) and promised == entry_of(xxh3_64(strip, n, lanes))


@njit(types.void(ADDRESS, SLOT, INTS, INTS), nogil=True, cache=True)
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


@njit(types.void(ADDRESS, INTS, types.int64, types.uint64[:, ::1]), nogil=True, cache=True)
def roots(arena: Any, offsets: Any, size: Any, words: Any) -> None:
    """High word, then low: the order of a canonical digest."""
    lanes = np.empty(8, np.uint64)
    for i in range(len(offsets)):
        low, high = xxh3_128(arena + U(offsets[i]), size, lanes)
        words[i, 0], words[i, 1] = high, low
