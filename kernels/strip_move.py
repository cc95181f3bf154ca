"""One strip, moved between its slot and an engine's pages and hashed on the way, in one pass.

Whole 1 KiB blocks go through registers once. What the engine keeps in shorter pieces is joined in a
block's worth of room first, so that a slot is always written past the cache and never read back;
going out, each piece is written past the cache and its block hashed from the slot's cached lines.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .accumulator import BLOCK, absorb_block, begin, copy_block, stream_block
from .inner import inner
from .memory import copy_line, load_8, load_64, prefetch, store_8, stream_line
from .xxh3 import LONG, U, absorb_tail, finish_64, xxh3_64

LINE = 64
SCALE, PAGE_ID = 4, 8  # bytes: a float32, and an int64 of a block table
LEAD = 2048
"""Bytes before its use that a token's run is asked for, where the next token's is not behind it."""


class Slot(NamedTuple):
    """A block's geometry, and the strips of it that a call is about."""

    kv_heads: int
    strip_stride: int
    parts: int
    run_bytes: int  # at the engine
    code_bytes: int  # of the same run in the slot
    codec: int
    item: int
    group_tokens: int  # that share a scale; 0 where slots hold what engines have
    layer_first: int
    layer_count: int
    head_first: int
    head_count: int


class Steps(NamedTuple):
    """An engine's strides in bytes, and its page size in tokens."""

    page: int
    head: int
    token: int
    part: int
    page_tokens: int


def strip_bytes(tokens: Any, parts: Any, code_bytes: Any, group_tokens: Any) -> Any:
    """Bytes of a strip: its runs and, under a codec, its scales, in whole lines."""
    codes = tokens * parts * code_bytes
    if group_tokens == 0:
        return codes
    scales = (tokens + group_tokens - 1) // group_tokens * parts * SCALE
    return (codes + scales + LINE - 1) // LINE * LINE


size_of: Any = njit(strip_bytes)


@inner
def copy_run(target: Any, source: Any, count: Any) -> None:
    done = 0
    while done + LINE <= count:
        copy_line(target + U(done), source + U(done))
        done += LINE
    while done < count:
        store_8(target + U(done), load_8(source + U(done)))
        done += 1


@inner
def stream_run(target: Any, source: Any, count: Any) -> None:
    """`copy_run`, past the cache where the run is whole lines."""
    if (target | U(count)) % U(LINE) == U(0):
        for done in range(0, count, LINE):
            stream_line(target + U(done), source + U(done))
    else:
        copy_run(target, source, count)


@inner
def move_block(lanes: Any, last: Any, target: Any, source: Any) -> None:
    """Fold the block at `source`, on its way to `target` where that is another place.

    For `move`'s loop this is one call: with the sixteen keys in it, the loop would load and put
    aside all of them before each short piece.
    """
    if target == source:
        absorb_block(lanes, last, source)
    elif target % U(LINE) == U(0):
        stream_block(lanes, last, source, target)
    else:
        copy_block(lanes, last, source, target)


@inner
def move(
    lanes: Any, strip: Any, done: Any, n: Any, far: Any, count: Any, outward: Any
) -> None:  # fmt: skip
    """Move the `count` bytes that follow the strip's first `done`, and fold what that completes.

    What whole blocks leave of n bytes is left unfolded, in the slot.
    """
    room = lanes + U(LINE)
    while count > 0:
        place = done % BLOCK
        step = min(BLOCK - place, count)
        ends = place + step == BLOCK
        end = done - place + BLOCK
        last = end == n
        near = strip + U(done)
        if step == BLOCK:
            move_block(lanes, last, far if outward else near, near if outward else far)
        elif outward:
            stream_run(far, near, step)
            if ends:
                move_block(lanes, last, near - U(place), near - U(place))
        elif end <= n:
            copy_run(room + U(place), far, step)
            if ends:
                move_block(lanes, last, near - U(place), room)
        else:
            copy_run(near, far, step)
        done += step
        count -= step
        far += U(step)


@inner
def finished(lanes: Any, strip: Any, n: Any) -> Any:
    """The hash of a strip in its slot, whose whole blocks have been folded."""
    if n < LONG:
        return xxh3_64(strip, n, lanes)
    absorb_tail(lanes, strip, n)
    return finish_64(lanes, n)


@inner
def address_of(base: Any, table: Any, steps: Any, position: Any) -> Any:
    """Where the engine keeps the sequence's token at a position, by the block table at `table`."""
    page = np.int64(load_64(table + U(position // steps.page_tokens * PAGE_ID)))
    return base + U(page * steps.page + position % steps.page_tokens * steps.token)


@inner
def move_strip(
    lanes: Any, strip: Any, base: Any, table: Any, steps: Any, slot: Any,
    start: Any, tokens: Any, outward: Any,
) -> Any:  # fmt: skip
    """Move a strip between its slot and the engine's head at `base`. Returns its hash."""
    joined = slot.parts == 1 or steps.part == slot.run_bytes
    piece = slot.run_bytes * slot.parts if joined else slot.run_bytes
    parts = 1 if joined else slot.parts
    dense = joined and steps.token == piece
    sparse = not outward and steps.token != piece
    lead = max(1, LEAD // (parts * piece))
    n = tokens * slot.parts * slot.run_bytes
    end = start + tokens
    done, token = 0, start
    begin(lanes)
    while token < end:
        share = min(steps.page_tokens - token % steps.page_tokens, end - token)
        far = address_of(base, table, steps, token)
        if dense:
            move(lanes, strip, done, n, far, piece * share, outward)
            done += piece * share
        else:
            for ahead in range(token + lead, token + lead + share):
                if sparse and ahead < end:
                    soon = address_of(base, table, steps, ahead)
                    for part in range(parts):
                        for line in range(0, piece, LINE):
                            prefetch(soon + U(part * steps.part + line))
                for part in range(parts):
                    move(lanes, strip, done, n, far + U(part * steps.part), piece, outward)
                    done += piece
                far += U(steps.token)
        token += share
    return finished(lanes, strip, n)
