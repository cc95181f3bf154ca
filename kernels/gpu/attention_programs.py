"""The programs of `attention`: one has some rows of a span, and a KV head. Nothing here checks.

A row is one query head of one token; those of a KV head's group stand next to each other, so that
its keys and values are read once for all of them. Softmax is taken as positions come (Milakov and
Gimelshein, arXiv 1805.02867), in float32.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from .launch import OF_A_STEP


@triton.jit
def _rows(tiles, spans, q_step, group, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """This program's span and KV head; of its rows the token, and where its query begins in q."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    span = tl.load(tiles + 2 * tile)
    row = tl.load(tiles + 2 * tile + 1) + tl.arange(0, ROWS)
    first = tl.load(spans + 3 * span)
    token = row // GROUP
    at = (first + token).to(tl.int64) * q_step + (head * GROUP + row % GROUP) * group
    return span, head, row, token, at


@triton.jit
def _seen(spans, span, token):
    """Of a span its tokens and prefix, and behind which position these rows see nothing."""
    tokens = tl.load(spans + 3 * span + 1)
    prefix = tl.load(spans + 3 * span + 2)
    return tokens, prefix, prefix + tl.minimum(tokens, tl.max(token, 0) + 1)


@triton.jit
def _part_tokens(end, parts, PART: tl.constexpr, POSITIONS: tl.constexpr):
    """Positions of each part of `end`. Worked out here, since lengths may change between launches;
    what is short fills the first parts only."""
    each = tl.cdiv(tl.cdiv(end, parts), POSITIONS) * POSITIONS
    return tl.maximum(PART, each)


@triton.jit
def _attended(
    query, token, kv, table, prefix, first, end, head,
    page_step, head_step, token_step, part_step, scale,
    PAGE_TOKENS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Over positions first..end: weighted values, not normalized, with maxima and sums of rows."""
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    values = tl.zeros((ROWS, WIDE), tl.float32)
    dim = tl.arange(0, WIDE)
    kv += head.to(tl.int64) * head_step
    for begin in range(first, end, POSITIONS):
        position = begin + tl.arange(0, POSITIONS)
        there = position < end
        page = tl.load(table + position // PAGE_TOKENS, mask=there, other=0).to(tl.int64)
        at = kv + page * page_step + (position % PAGE_TOKENS).to(tl.int64) * token_step
        held = there[:, None] & (dim[None, :] < DIM)
        key = tl.load(at[:, None] + dim[None, :], mask=held, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        seen = there[None, :] & (position[None, :] <= prefix + token[:, None])
        score = tl.where(seen, score, float("-inf"))
        new = tl.maximum(most, tl.max(score, 1))
        none = new == float("-inf")  # a part may lie behind all that a row sees
        weight = tl.where(none[:, None], 0.0, tl.exp(score - new[:, None]))
        kept = tl.where(most == float("-inf"), 0.0, tl.exp(most - new))
        value = tl.load(at[:, None] + part_step + dim[None, :], mask=held, other=0.0)
        added = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        values = values * kept[:, None] + added
        total = total * kept + tl.sum(weight, 1)
        most = new
    return values, most, total


@triton.jit(do_not_specialize=OF_A_STEP)
def attend_rows(
    q, kv, out, tables, tiles, spans, q_step, table_step,
    page_step, head_step, token_step, part_step, scale,
    PAGE_TOKENS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Rows over all that they see."""
    span, head, _, token, at = _rows(tiles, spans, q_step, DIM, GROUP, ROWS)
    tokens, prefix, end = _seen(spans, span, token)
    if end == 0:  # a row of no token
        return
    dim = tl.arange(0, WIDE)
    held = (token < tokens)[:, None] & (dim[None, :] < DIM)
    query = tl.load(q + at[:, None] + dim[None, :], mask=held, other=0.0)
    values, _, total = _attended(
        query, token, kv, tables + span * table_step, prefix, 0, end, head,
        page_step, head_step, token_step, part_step, scale,
        PAGE_TOKENS, DIM, WIDE, ROWS, POSITIONS,
    )  # fmt: skip
    made = values / total[:, None]
    tl.store(out + at[:, None] + dim[None, :], made.to(q.dtype.element_ty), mask=held)


@triton.jit(do_not_specialize=OF_A_STEP)
def attend_part(
    q, kv, sums, tables, tiles, spans, q_step, table_step,
    page_step, head_step, token_step, part_step, scale,
    PAGE_TOKENS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, POSITIONS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Rows over one part of the positions: (tile, head, part, row, WIDE + 2) sums to be joined.
    Nothing of a part that is behind all that the rows see."""
    span, head, _, token, at = _rows(tiles, spans, q_step, DIM, GROUP, ROWS)
    part, parts = tl.program_id(2), tl.num_programs(2)
    tokens, prefix, end = _seen(spans, span, token)
    part_tokens = _part_tokens(end, parts, PART, POSITIONS)
    begin = part * part_tokens
    if begin >= end:
        return
    dim = tl.arange(0, WIDE)
    held = (token < tokens)[:, None] & (dim[None, :] < DIM)
    query = tl.load(q + at[:, None] + dim[None, :], mask=held, other=0.0)
    values, most, total = _attended(
        query, token, kv, tables + span * table_step, prefix,
        begin, tl.minimum(end, begin + part_tokens), head,
        page_step, head_step, token_step, part_step, scale,
        PAGE_TOKENS, DIM, WIDE, ROWS, POSITIONS,
    )  # fmt: skip
    place = (tl.program_id(0) * tl.num_programs(1) + head) * parts + part
    to = sums + (place.to(tl.int64) * ROWS + tl.arange(0, ROWS)) * (WIDE + 2)
    ours = token < tokens
    tl.store(to[:, None] + dim[None, :], values, mask=ours[:, None])
    tl.store(to + WIDE, most, mask=ours)
    tl.store(to + WIDE + 1, total, mask=ours)


@triton.jit(do_not_specialize=(*OF_A_STEP, "parts"))
def join_parts(
    sums, out, tiles, spans, q_step, parts,
    DIM: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    POSITIONS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The sums of those parts in which the rows see something, as one softmax."""
    span, head, _, token, at = _rows(tiles, spans, q_step, DIM, GROUP, ROWS)
    tokens, _, end = _seen(spans, span, token)
    if end == 0:
        return
    dim = tl.arange(0, WIDE)
    ours = token < tokens
    held = ours[:, None] & (dim[None, :] < DIM)
    place = (tl.program_id(0) * tl.num_programs(1) + head).to(tl.int64) * parts
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    values = tl.zeros((ROWS, WIDE), tl.float32)
    count = tl.cdiv(end, _part_tokens(end, parts, PART, POSITIONS))
    for part in tl.range(0, count, loop_unroll_factor=4):  # so many are loaded at once
        at_part = sums + ((place + part) * ROWS + tl.arange(0, ROWS)) * (WIDE + 2)
        theirs = tl.load(at_part + WIDE, mask=ours, other=0.0)
        new = tl.maximum(most, theirs)
        kept = tl.where(most == float("-inf"), 0.0, tl.exp(most - new))
        share = tl.where(theirs == float("-inf"), 0.0, tl.exp(theirs - new))
        values = values * kept[:, None]
        values += tl.load(at_part[:, None] + dim[None, :], mask=held, other=0.0) * share[:, None]
        total = total * kept + tl.load(at_part + WIDE + 1, mask=ours, other=1.0) * share
        most = new
    made = values / total[:, None]
    tl.store(out + at[:, None] + dim[None, :], made.to(out.dtype.element_ty), mask=held)
