"""The programs of `strips`: one a strip. Nothing here checks an address or a size.

A batch is told in `blocks`, (5, count) int64: words at which payloads begin, tokens, first
positions, words at which strip tables begin, words of a strip. A program goes through its strip
BLOCK words at a time, all loaded before the first is stored, which no compiler may do by itself. A
thread has pairs of words, so that one warp hashes a block of 128 without shared memory. Where all
begins at multiples of 16 bytes, `PAIRED`, a pair is loaded and stored as one. Loops are told how
many of their turns are to be under way, `STAGES`: unasked, Triton has more than one only where it
multiplies matrices.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005  (Triton unpacks nothing into a tuple)
from __future__ import annotations

import triton
import triton.language as tl

from . import xxh3
from .launch import OF_A_CALL


@triton.jit
def _pairs():
    """Words at which the pairs of a block of the hash begin, (4, 16 stripes): Triton gives
    neighbouring threads what is next to each other along the first axis, of two that are alike."""
    return 2 * tl.arange(0, 4)[:, None] + 8 * tl.arange(0, 16)[None, :]


@triton.jit
def _both(at, PAIRED: tl.constexpr):
    """Words, or pointers to them, (4, 16, 2), of those at which pairs begin."""
    each = at[:, :, None] + tl.arange(0, 2)[None, None, :]
    if PAIRED:
        each = tl.max_contiguous(tl.multiple_of(each, [1, 1, 16]), [1, 1, 2])
    return each


@triton.jit
def _engine_words(
    word, there, table, start, page_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Where words of a strip lie behind its layer's and head's first."""
    word = word.to(tl.uint32)  # which is quicker to divide
    position = start + word // (PARTS * RUN)
    page = tl.load(table + position // PAGE_TOKENS, mask=there, other=0)
    inner = page * page_words + (position % PAGE_TOKENS).to(tl.int64) * token_words
    return inner + (word // RUN % PARTS).to(tl.int64) * part_words + word % RUN


@triton.jit
def _ends(
    first, words, slot, engine, table, start, page_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """A block's words in the slot and at the engine, and which of them there are."""
    pair = first + _pairs()
    if PAIRED:  # a pair is of one run, and there as a whole
        some = pair < words
        inner = _engine_words(
            pair, some, table, start, page_words, token_words, part_words, PAGE_TOKENS, PARTS, RUN
        )  # fmt: skip
        there = _both(engine + inner, True)
        some = tl.broadcast_to(some[:, :, None], (4, 16, 2))
    else:
        word = _both(pair, False)
        some = word < words
        inner = _engine_words(
            word, some, table, start, page_words, token_words, part_words, PAGE_TOKENS, PARTS, RUN
        )  # fmt: skip
        there = engine + inner
    return _both(slot + pair, PAIRED), there, some


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
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr,
    BLOCK: tl.constexpr, PAIRED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, layer, head, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
    words = tl.load(blocks + 4 * count + block).to(tl.int32)
    start = tl.load(blocks + 2 * count + block).to(tl.uint32)
    engine = tl.load(layers + layer).to(tl.pointer_type(tl.int64)) + head.to(tl.int64) * head_words
    even, odd = xxh3.begin(secret)
    keys, scrambles = xxh3.stripe_keys(secret), xxh3.pairs(secret + 128, 8)
    last = (words - 1) // BLOCK * BLOCK
    for first in tl.range(0, last, BLOCK, num_stages=STAGES):
        held, to = (), ()
        for nth in tl.static_range(BLOCK // 128):
            here, there, _ = _ends(
                first + 128 * nth, words, slot, engine, table, start,
                page_words, token_words, part_words, PAGE_TOKENS, PARTS, RUN, PAIRED,
            )  # fmt: skip
            held, to = held + (tl.load(there),), to + (here,)
        for nth in tl.static_range(BLOCK // 128):
            tl.store(to[nth], held[nth])
            data = held[nth].to(tl.uint64, bitcast=True)
            even, odd = xxh3.absorb(even, odd, data, keys, scrambles)
    for first in range(last, words, 128):
        here, there, some = _ends(
            first, words, slot, engine, table, start,
            page_words, token_words, part_words, PAGE_TOKENS, PARTS, RUN, PAIRED,
        )  # fmt: skip
        data = tl.load(there, mask=some, other=0)
        tl.store(here, data, mask=some)
        data = data.to(tl.uint64, bitcast=True)
        even, odd = xxh3.absorb_some(even, odd, data, words - first, keys, scrambles)
    tl.debug_barrier()  # what follows reads what other threads of this program stored
    entry = _entry(slot, even, odd, words, secret)
    at = slots + tl.load(blocks + 3 * count + block) + row
    tl.store(at, entry.to(tl.int64, bitcast=True))


@triton.jit(do_not_specialize=OF_A_CALL)
def scatter_strip(
    slots, layers, table, blocks, secret, good, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_words, head_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr,
    BLOCK: tl.constexpr, PAIRED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, layer, head, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    promised = tl.load(slots + tl.load(blocks + 3 * count + block) + row)
    if promised == 0:
        tl.store(good + tl.program_id(0), promised != 0)
    else:
        slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
        words = tl.load(blocks + 4 * count + block).to(tl.int32)
        start = tl.load(blocks + 2 * count + block).to(tl.uint32)
        engine = tl.load(layers + layer).to(tl.pointer_type(tl.int64))
        engine += head.to(tl.int64) * head_words
        even, odd = xxh3.begin(secret)
        keys, scrambles = xxh3.stripe_keys(secret), xxh3.pairs(secret + 128, 8)
        last = (words - 1) // BLOCK * BLOCK
        for first in tl.range(0, last, BLOCK, num_stages=STAGES):
            held, to = (), ()
            for nth in tl.static_range(BLOCK // 128):
                here, there, _ = _ends(
                    first + 128 * nth, words, slot, engine, table, start,
                    page_words, token_words, part_words, PAGE_TOKENS, PARTS, RUN, PAIRED,
                )  # fmt: skip
                held, to = held + (tl.load(here),), to + (there,)
            for nth in tl.static_range(BLOCK // 128):
                tl.store(to[nth], held[nth])
                data = held[nth].to(tl.uint64, bitcast=True)
                even, odd = xxh3.absorb(even, odd, data, keys, scrambles)
        for first in range(last, words, 128):
            here, there, some = _ends(
                first, words, slot, engine, table, start,
                page_words, token_words, part_words, PAGE_TOKENS, PARTS, RUN, PAIRED,
            )  # fmt: skip
            data = tl.load(here, mask=some, other=0)
            tl.store(there, data, mask=some)
            data = data.to(tl.uint64, bitcast=True)
            even, odd = xxh3.absorb_some(even, odd, data, words - first, keys, scrambles)
        found = _entry(slot, even, odd, words, secret).to(tl.int64, bitcast=True)
        tl.store(good + tl.program_id(0), found == promised)


@triton.jit
def _found(
    slot, words, secret, BLOCK: tl.constexpr, PAIRED: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """The entry of a strip as it lies in its slot, as int64."""
    even, odd = xxh3.begin(secret)
    keys, scrambles = xxh3.stripe_keys(secret), xxh3.pairs(secret + 128, 8)
    last = (words - 1) // BLOCK * BLOCK
    for first in tl.range(0, last, BLOCK, num_stages=STAGES):
        held = ()
        for nth in tl.static_range(BLOCK // 128):
            held = held + (xxh3.word(_both(slot + first + 128 * nth + _pairs(), PAIRED)),)
        for nth in tl.static_range(BLOCK // 128):
            even, odd = xxh3.absorb(even, odd, held[nth], keys, scrambles)
    for first in range(last, words, 128):
        word = first + _both(_pairs(), False)
        data = tl.load(slot + word, mask=word < words, other=0).to(tl.uint64, bitcast=True)
        even, odd = xxh3.absorb_some(even, odd, data, words - first, keys, scrambles)
    return _entry(slot, even, odd, words, secret).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=OF_A_CALL)
def verify_strip(
    slots, blocks, secret, good, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    BLOCK: tl.constexpr, PAIRED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, _, _, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    promised = tl.load(slots + tl.load(blocks + 3 * count + block) + row)
    slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
    words = tl.load(blocks + 4 * count + block).to(tl.int32)
    found = _found(slot, words, secret, BLOCK, PAIRED, STAGES)
    tl.store(good + tl.program_id(0), (found == promised) & (promised != 0))


@triton.jit(do_not_specialize=OF_A_CALL)
def enter_strip(
    slots, blocks, secret, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    BLOCK: tl.constexpr, PAIRED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, _, _, row = _place(kv_heads, layer_first, layer_count, head_first, head_count)
    slot = slots + tl.load(blocks + block) + row.to(tl.int64) * strip_words
    words = tl.load(blocks + 4 * count + block).to(tl.int32)
    found = _found(slot, words, secret, BLOCK, PAIRED, STAGES)
    tl.store(slots + tl.load(blocks + 3 * count + block) + row, found)


@triton.jit
def _entry(slot, even, odd, words, secret):
    """What the table says of a strip that lies in its slot: its hash, with 0 told as 1."""
    size = words * 8
    if size >= xxh3.LONG:
        even, odd = xxh3.absorb_last(even, odd, slot + words - 8, secret)
        h = xxh3.finish(even, odd, size, secret)
    else:
        h = xxh3.middle(slot, size, secret)
    return tl.where(h == 0, 1, h).to(tl.uint64)
