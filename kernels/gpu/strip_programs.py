"""The programs of `strips`: one a strip. Nothing here checks an address or a size.

A batch is told in `blocks`, (5, count) int64: words at which payloads begin, tokens, first
positions, words at which strip tables begin, words of a strip. Loops are told how many of their
turns are to be under way, `STAGES`: unasked, Triton has more than one only where it multiplies
matrices.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from . import xxh3
from .launch import OF_A_CALL


@triton.jit
def _engine_words(
    word, table, start, page_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr, there,
):  # fmt: skip
    """Where words of a strip lie behind its layer's and head's first."""
    position = start + word // (PARTS * RUN)
    page = tl.load(table + position // PAGE_TOKENS, mask=there, other=0)
    inner = page * page_words + position % PAGE_TOKENS * token_words
    return inner + word // RUN % PARTS * part_words + word % RUN


@triton.jit
def _place(kv_heads, layer_first, layer_count, head_first, head_count):
    """This program's strip: its block, layer and head of the span, and its row of the table."""
    strip = tl.program_id(0)
    block = strip // (layer_count * head_count)
    layer = strip // head_count % layer_count
    head = strip % head_count
    return block, layer, head, (layer_first + layer) * kv_heads + head_first + head


@triton.jit(do_not_specialize=OF_A_CALL)
def gather_strip(
    slots, layers, table, blocks, secret, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_words, head_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, layer, head, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
    words = tl.load(blocks + 4 * count + block).to(tl.int32)
    start = tl.load(blocks + 2 * count + block)
    engine = tl.load(layers + layer).to(tl.pointer_type(tl.int64)) + head.to(tl.int64) * head_words
    within = tl.arange(0, 16)[:, None] * 8 + tl.arange(0, 8)[None, :]
    lanes = xxh3.begin(secret)
    for first in tl.range(0, words, 128, num_stages=STAGES):
        word = first + within
        there = word < words
        inner = _engine_words(
            word, table, start, page_words, token_words, part_words,
            PAGE_TOKENS, PARTS, RUN, there,
        )  # fmt: skip
        data = tl.load(engine + inner, mask=there, other=0)
        tl.store(slot + word, data, mask=there)
        data = data.to(tl.uint64, bitcast=True)
        if first + 128 < words:
            lanes = xxh3.scramble(xxh3.absorb(lanes, data, secret), secret)
        else:
            lanes = xxh3.absorb_some(lanes, data, (words - first - 1) // 8, secret)
    tl.debug_barrier()  # what follows reads what other threads of this program stored
    entry = _entry(slot, lanes, words, secret)
    at = slots + tl.load(blocks + 3 * count + block) + row
    tl.store(at, entry.to(tl.int64, bitcast=True))


@triton.jit(do_not_specialize=OF_A_CALL)
def scatter_strip(
    slots, layers, table, blocks, secret, good, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_words, head_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, layer, head, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    promised = tl.load(slots + tl.load(blocks + 3 * count + block) + row)
    if promised != 0:
        slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
        words = tl.load(blocks + 4 * count + block).to(tl.int32)
        start = tl.load(blocks + 2 * count + block)
        engine = tl.load(layers + layer).to(tl.pointer_type(tl.int64))
        engine += head.to(tl.int64) * head_words
        within = tl.arange(0, 16)[:, None] * 8 + tl.arange(0, 8)[None, :]
        lanes = xxh3.begin(secret)
        for first in tl.range(0, words, 128, num_stages=STAGES):
            word = first + within
            there = word < words
            inner = _engine_words(
                word, table, start, page_words, token_words, part_words,
                PAGE_TOKENS, PARTS, RUN, there,
            )  # fmt: skip
            data = tl.load(slot + word, mask=there, other=0)
            tl.store(engine + inner, data, mask=there)
            data = data.to(tl.uint64, bitcast=True)
            if first + 128 < words:
                lanes = xxh3.scramble(xxh3.absorb(lanes, data, secret), secret)
            else:
                lanes = xxh3.absorb_some(lanes, data, (words - first - 1) // 8, secret)
        found = _entry(slot, lanes, words, secret).to(tl.int64, bitcast=True)
        tl.store(good + tl.program_id(0), found == promised)


@triton.jit
def _found(slot, words, secret, STAGES: tl.constexpr):
    """The entry of a strip as it lies in its slot, as int64."""
    within = tl.arange(0, 16)[:, None] * 8 + tl.arange(0, 8)[None, :]
    lanes = xxh3.begin(secret)
    for first in tl.range(0, words, 128, num_stages=STAGES):
        data = tl.load(slot + first + within, mask=first + within < words, other=0)
        data = data.to(tl.uint64, bitcast=True)
        if first + 128 < words:
            lanes = xxh3.scramble(xxh3.absorb(lanes, data, secret), secret)
        else:
            lanes = xxh3.absorb_some(lanes, data, (words - first - 1) // 8, secret)
    return _entry(slot, lanes, words, secret).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=OF_A_CALL)
def verify_strip(
    slots, blocks, secret, good, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count, STAGES: tl.constexpr,
):  # fmt: skip
    block, _, _, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    promised = tl.load(slots + tl.load(blocks + 3 * count + block) + row)
    slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
    found = _found(slot, tl.load(blocks + 4 * count + block).to(tl.int32), secret, STAGES)
    tl.store(good + tl.program_id(0), (found == promised) & (promised != 0))


@triton.jit(do_not_specialize=OF_A_CALL)
def enter_strip(
    slots, blocks, secret, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count, STAGES: tl.constexpr,
):  # fmt: skip
    block, _, _, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
    found = _found(slot, tl.load(blocks + 4 * count + block).to(tl.int32), secret, STAGES)
    tl.store(slots + tl.load(blocks + 3 * count + block) + row, found)


@triton.jit
def _entry(slot, lanes, words, secret):
    """What the table says of a strip that lies in its slot: its hash, with 0 told as 1."""
    size = words * 8
    if size >= xxh3.LONG:
        last = xxh3.word(slot + words - 8 + tl.arange(0, 8))
        h = xxh3.finish(xxh3.absorb_last(lanes, last, secret), size, secret)
    else:
        h = xxh3.middle(slot, size, secret)
    return tl.where(h == 0, 1, h).to(tl.uint64)
