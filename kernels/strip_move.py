"""One strip, moved between its slot and an engine's pages and hashed on the way, in one pass.

Whole 1 KiB blocks go through registers once. What the engine keeps in shorter pieces is joined in a
block's worth of room first, so that a slot is always written past the cache and never read back;
going out, each piece is written past the cache and its block hashed from the slot's cached lines.
Where an engine has a token's or a page's heads beside each other, their strips are gathered side by
side.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .accumulator import BLOCK, ROOM, absorb_block, begin, copy_block, stream_block
from .inner import inner
from .memory import copy_line, load_8, load_64, prefetch, store_8, stream_line
from .xxh3 import LONG, U, absorb_tail, finish_64, xxh3_64

LINE = 64
SCALE, PAGE_ID = 4, 8  # bytes: a float32, and an int64 of a block table
LEAD = 2048
"""Bytes before its use that a run is asked for: at the engine where the next one is not behind it,
in the slot where runs are short."""


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
    lanes: Any, room: Any, strip: Any, done: Any, n: Any, far: Any, count: Any, outward: Any
) -> None:  # fmt: skip
    """Move the `count` bytes that follow the strip's first `done`, and fold what that completes.

    What whole blocks leave of n bytes is left unfolded, in the slot.
    """
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
            for line in range(0, step, LINE):
                prefetch(near + U(LEAD + line))
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
def move_tokens(
    lanes: Any, room: Any, strip: Any, base: Any, table: Any, steps: Any, slot: Any,
    start: Any, tokens: Any, token: Any, last: Any, outward: Any, onward: Any,
) -> None:  # fmt: skip
    """Move the tokens from `token` to before `last` of a strip of those from `start` on. The engine
    has the same tokens of the strip that comes next so many bytes `onward`; 0: none does."""
    joined = slot.parts == 1 or steps.part == slot.run_bytes
    piece = slot.run_bytes * slot.parts if joined else slot.run_bytes
    parts = 1 if joined else slot.parts
    dense = joined and steps.token == piece
    sparse = not outward and steps.token != piece
    lead = max(1, LEAD // (parts * piece))
    each = slot.parts * slot.run_bytes
    n, end, done = tokens * each, start + tokens, (token - start) * each
    told = end + tokens if onward else end  # where the engine has more is not known
    while token < last:
        share = min(steps.page_tokens - token % steps.page_tokens, last - token)
        far = address_of(base, table, steps, token)
        if dense:
            move(lanes, room, strip, done, n, far, piece * share, outward)
            done += piece * share
        else:
            for ahead in range(token + lead, token + lead + share):
                if sparse and ahead < told:
                    if ahead < end:
                        soon = address_of(base, table, steps, ahead)
                    else:
                        soon = address_of(base + onward, table, steps, ahead - tokens)
                    for part in range(parts):
                        for line in range(0, piece, LINE):
                            prefetch(soon + U(part * steps.part + line))
                for part in range(parts):
                    move(lanes, room, strip, done, n, far + U(part * steps.part), piece, outward)
                    done += piece
                far += U(steps.token)
        token += share


@inner
def move_strip(
    lanes: Any, strip: Any, base: Any, table: Any, steps: Any, slot: Any,
    start: Any, tokens: Any, outward: Any,
) -> Any:  # fmt: skip
    """Move a strip between its slot and the engine's head at `base`. Returns its hash."""
    begin(lanes)
    move_tokens(
        lanes, lanes + U(ROOM), strip, base, table, steps, slot,
        start, tokens, start, start + tokens, outward, U(0),
    )  # fmt: skip
    return finished(lanes, strip, tokens * slot.parts * slot.run_bytes)


@inner
def beside(steps: Any, slot: Any) -> Any:
    """Tokens of a strip to gather before those of the next head, where an engine has a token's, or
    a page's, heads beside each other: what lies in a row is read in a row. 0 where strips are
    better moved whole. It is whole blocks, so heads may share the room of one that is joined.

    Going out strips are moved whole: slots are read in a row, and pages written at a copy's speed.
    """
    each = slot.parts * slot.run_bytes
    if slot.head_count < 2 or steps.head >= steps.page:
        return 0
    group = BLOCK // each if steps.head < steps.token else steps.page_tokens
    return 0 if group * each % BLOCK else group


@inner
def gather_heads(
    lanes: Any, strip: Any, base: Any, table: Any, steps: Any, slot: Any,
    start: Any, tokens: Any, heads: Any, group: Any, onward: Any,
) -> None:  # fmt: skip
    """Move so many heads' strips into their slot side by side, `group` tokens at a time. The lanes
    of each, one after the other, have its hash. `onward` as of `move_tokens`."""
    for head in range(heads):
        begin(lanes + U(head * LINE))
    for token in range(start, start + tokens, group):
        last = min(token + group, start + tokens)
        for head in range(heads):
            move_tokens(
                lanes + U(head * LINE), lanes + U(ROOM), strip + U(head * slot.strip_stride),
                base + U(head * steps.head), table, steps, slot,
                start, tokens, token, last, False, onward,
            )  # fmt: skip
