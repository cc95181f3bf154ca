"""The programs of `pages`: one a tile of a strip. Nothing here checks an address or a size."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from .launch import OF_A_CALL


@triton.jit
def _ends(
    slots, layers, table, blocks, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_words, head_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN_WORDS: tl.constexpr,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """This program's words at both ends, and which of them there are."""
    tiles = tl.cdiv(strip_words, BLOCK)
    tile = tl.program_id(0) % tiles
    strip = tl.program_id(0) // tiles
    block = strip // (layer_count * head_count)
    layer = strip // head_count % layer_count
    head = strip % head_count
    payload = tl.load(blocks + block)
    tokens = tl.load(blocks + count + block)
    start = tl.load(blocks + 2 * count + block)
    word = tile * BLOCK + tl.arange(0, BLOCK)
    there = word < tokens * (PARTS * RUN_WORDS)
    row = (layer_first + layer) * kv_heads + head_first + head
    slot = slots + payload + row.to(tl.int64) * strip_words + word
    position = start + word // (PARTS * RUN_WORDS)
    page = tl.load(table + position // PAGE_TOKENS, mask=there, other=0)
    inner = page * page_words + position % PAGE_TOKENS * token_words
    inner += word // RUN_WORDS % PARTS * part_words + word % RUN_WORDS
    base = tl.load(layers + layer).to(tl.pointer_type(KIND))
    return slot, base + head.to(tl.int64) * head_words + inner, there


@triton.jit(do_not_specialize=OF_A_CALL)
def gather_tile(
    slots, layers, table, blocks, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_words, head_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN_WORDS: tl.constexpr,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot, engine, there = _ends(
        slots, layers, table, blocks, count, strip_words, kv_heads,
        layer_first, layer_count, head_first, head_count,
        page_words, head_words, token_words, part_words,
        PAGE_TOKENS, PARTS, RUN_WORDS, KIND, BLOCK,
    )  # fmt: skip
    tl.store(slot, tl.load(engine, mask=there), mask=there)


@triton.jit(do_not_specialize=OF_A_CALL)
def scatter_tile(
    slots, layers, table, blocks, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_words, head_words, token_words, part_words,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN_WORDS: tl.constexpr,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot, engine, there = _ends(
        slots, layers, table, blocks, count, strip_words, kv_heads,
        layer_first, layer_count, head_first, head_count,
        page_words, head_words, token_words, part_words,
        PAGE_TOKENS, PARTS, RUN_WORDS, KIND, BLOCK,
    )  # fmt: skip
    tl.store(engine, tl.load(slot, mask=there), mask=there)
