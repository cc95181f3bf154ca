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
from .memory import copy_chunk, fence, load_8, load_published, prefetch, publish, store_8, stream_line
from .xxh3 import LONG, U, absorb_tail, begin, finish_64, xxh3_64
from .xxh3_128 import xxh3_128

CHUNK = 32
import os
AHEAD_TOKENS = int(os.environ.get("AHEAD","8"))


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
def copy_whole(home: Any, target: Any, source: Any) -> None:
    if target % U(64) == U(0):
        stream_block(home, source, target)
    else:
        copy_block(home, source, target)


@njit
def move(
    lanes: Any, strip: Any, done: Any, n: Any, far: Any, count: Any, outward: Any
) -> None:  # fmt: skip
    """Move the `count` bytes that follow the strip's first `done`, and fold what that completes.

    Pieces of a block coming in are joined in the room behind the lanes, and leave it as a whole
    block does. The last block of n bytes is left unfolded.
    """
    home = U(lanes.ctypes.data)
    while count > 0:
        within = done % BLOCK
        step = min(BLOCK - within, count)
        ends = within + step == BLOCK
        whole = done - within + BLOCK < n
        near = strip + U(done)
        block = near - U(within)
        joint = home + U(64)
        if outward:
            if whole and step == BLOCK:
                copy_whole(home, far, near)
            else:
                if (far | U(step)) % U(64) == U(0):
                    for line in range(0, step, 64):
                        stream_line(far + U(line), near + U(line))
                else:
                    copy_run(far, near, step)
                if whole and ends:
                    absorb_block(home, block)
        elif not whole:
            copy_run(near, far, step)
        elif step == BLOCK:
            copy_whole(home, near, far)
        else:
            copy_run(joint + U(within), far, step)
            if ends:
                copy_whole(home, block, joint)
        done += step
        count -= step
        far += U(step)


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
            ahead = token + i + AHEAD_TOKENS
            if not (dense or outward) and ahead < start + tokens:
                soon = base + U(
                    table[ahead // steps.page_tokens] * steps.page
                    + ahead % steps.page_tokens * steps.token
                )
                for part in range(parts):
                    for line in range(0, piece, 64):
                        prefetch(soon + U(part * steps.part + line))
            for part in range(parts):
                far = page + U(i * steps.token + part * steps.part)
                move(lanes, strip, done, n, far, count, outward)
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
    lanes = np.empty(8 + BLOCK // 8, np.uint64)
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
