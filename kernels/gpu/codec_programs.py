"""The programs of codecs: one has a strip's tokens that share scales. Nothing here checks anything.
Where an engine's runs all begin at multiples of 16 bytes, `PAIRED`, so much is loaded and stored as
one.

The codes are those of `kernels.codec_vectors`, bit for bit: whatever rounds is one IEEE operation
(so no multiplication may be fused with an addition) or whole-number arithmetic on a float's bits.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from .launch import OF_A_CALL

BF16, FP16 = tl.constexpr(0), tl.constexpr(1)  # of items; the third is float32
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
LEAST = tl.constexpr((127 - 100) << 23)  # the least magnitude that is told from zero
WHOLE = tl.constexpr(0x4B400000)  # 1.5 * 2**23: a float32 to which it is added keeps whole numbers
FP8_NAN, FP8_NORMAL = tl.constexpr(0x7F), tl.constexpr((127 - 6) << 23)
FP16_NORMAL = tl.constexpr((127 - 14) << 23)


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _floats(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _widened(words, ITEM: tl.constexpr):
    """Elements as float32, and which are finite; what is not may be anything."""
    if ITEM == BF16:
        finite = (words & 0x7FFF) < 0x7F80
        x = _floats(words.to(tl.int32) << 16)
    elif ITEM == FP16:
        finite = (words & 0x7FFF) < 0x7C00
        x = words.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        finite = (words & 0x7FFFFFFF) < 0x7F800000
        x = _floats(words)
    return x, finite


@triton.jit
def _rounded(magnitude, BITS: tl.constexpr):
    """Magnitudes whose last bits may be cut off: nearest, ties to even."""
    return magnitude + ((magnitude >> BITS) & 1) + ((1 << (BITS - 1)) - 1)


@triton.jit
def _narrowed(held, FP8: tl.constexpr, ITEM: tl.constexpr):
    """Float32 magnitudes, as bits, as the engine's elements: nearest, and never an infinity."""
    if ITEM == BF16:
        held = tl.minimum(held, 0x7F7F0000)
        if not FP8:  # whose codes have four significant bits
            held = _rounded(held, 16)
        words = held >> 16
    elif ITEM == FP16:
        held = tl.minimum(held, 0x477FE000)
        normal = (_rounded(held, 13) >> 13) - ((127 - 15) << 10)
        low = _bits(_floats(held) + 0.5) & 0x7FFF
        words = tl.where(held < FP16_NORMAL, low, normal)
    else:
        words = tl.minimum(held, 0x7F7FFFFF)
    return words


@triton.jit
def _scales(peak, FP8: tl.constexpr):
    """Scale and its inverse, as float32 bits, for the largest magnitude's bits."""
    if FP8:
        # 448 is 1.75 x 2**8: a mantissa beyond .75 takes one power of two more.
        power = (peak >> 23) - 8 + ((peak & 0x7FFFFF) > 0x600000).to(tl.int32)
        scale, inverse = power << 23, (254 - power) << 23
    else:
        most = tl.where(peak < LEAST, LEAST, peak)
        scale = _bits(tl.div_rn(_floats(most), 127.0))
        inverse = _bits(tl.div_rn(127.0, _floats(most)))
    nothing = peak < LEAST
    return tl.where(nothing, 0, scale), tl.where(nothing, 0, inverse)


@triton.jit
def _coded(x, finite, inverse, FP8: tl.constexpr):
    scaled = x * inverse
    if FP8:
        held = _bits(scaled) & MAGNITUDE
        normal = (_rounded(held, 20) >> 20) - ((127 - 7) << 3)
        low = _bits(_floats(held) + 16384.0) & 0xFF  # to which multiples of 2**-9 are added only
        sign = (_bits(x) >> 24) & 0x80
        code = tl.where(held < FP8_NORMAL, low, normal) | sign
        code = tl.where(finite, code, FP8_NAN)
    else:
        code = _bits(scaled + 12582912.0) - WHOLE
        code = tl.where(finite, code, -128)
    return code


@triton.jit
def _meant(codes, FP8: tl.constexpr):
    """Of codes, (int32, 0..255): magnitudes before their scale, and which mean no number."""
    if FP8:
        held = codes & 0x7F
        normal = _floats((held << 20) + ((127 - 7) << 23))
        value = tl.where(held < 8, held.to(tl.float32) * 0.001953125, normal)
        nan = held == FP8_NAN
    else:
        value = tl.where(codes >= 128, 256 - codes, codes).to(tl.float32)
        nan = codes == 128
    return value, nan


@triton.jit
def _group_of(
    slots, layers, table, blocks, groups, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_step, head_step, token_step,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, ITEMS: tl.constexpr, ITEM: tl.constexpr,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """This program's tokens: where they lie at the engine (their first part) and in the slot."""
    group = tl.program_id(0) % groups
    strip = tl.program_id(0) // groups
    block = strip // (layer_count * head_count)
    layer = strip // head_count % layer_count
    head = strip % head_count
    row = (layer_first + layer) * kv_heads + head_first + head
    slot = slots + 8 * (tl.load(blocks + block) + row.to(tl.int64) * strip_words)
    tokens = tl.load(blocks + count + block).to(tl.int32)
    start = tl.load(blocks + 2 * count + block)
    size = 8 * tl.load(blocks + 4 * count + block).to(tl.int32)
    within = tl.arange(0, TOKENS)
    token = group * GROUP + within
    item = tl.arange(0, ITEMS)[None, :]
    real = (within < GROUP) & (token < tokens)
    position = start + token
    page = tl.load(table + position // PAGE_TOKENS, mask=real, other=0)
    inner = page * page_step + position % PAGE_TOKENS * token_step + head.to(tl.int64) * head_step
    if ITEM == 2:
        base = tl.load(layers + layer).to(tl.pointer_type(tl.int32))
    else:
        base = tl.load(layers + layer).to(tl.pointer_type(tl.int16))
    there = real[:, None] & (item < RUN)
    codes = slot + token[:, None] * (PARTS * RUN) + item
    runs = base + inner
    if PAIRED:  # else a thread has each element of 2 bytes by itself
        runs = tl.multiple_of(runs, [16])
    return runs[:, None] + item, codes, there, slot, group, tokens, size


@triton.jit(do_not_specialize=OF_A_CALL)
def encode_group(
    slots, layers, table, blocks, groups, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_step, head_step, token_step, part_step,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, ITEMS: tl.constexpr,
    FP8: tl.constexpr, ITEM: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """Codes and scales of these tokens; the first group's program writes the zeros behind all."""
    engine, codes, there, slot, group, tokens, size = _group_of(
        slots, layers, table, blocks, groups, count, strip_words, kv_heads,
        layer_first, layer_count, head_first, head_count, page_step, head_step, token_step,
        PAGE_TOKENS, PARTS, RUN, GROUP, TOKENS, ITEMS, ITEM, PAIRED,
    )  # fmt: skip
    octet = tl.arange(0, 4)
    scales = slot + tokens * (PARTS * RUN)
    if group * GROUP < tokens:
        for part in tl.static_range(PARTS):
            words = tl.load(engine + part * part_step, mask=there, other=0)
            x, finite = _widened(words, ITEM)
            magnitude = tl.where(finite & there, _bits(x) & MAGNITUDE, 0)
            scale, inverse = _scales(tl.max(tl.max(magnitude, 1), 0), FP8)
            code = _coded(x, finite, _floats(inverse), FP8)
            tl.store(codes + part * RUN, code.to(tl.uint8), mask=there)
            at = scales + 4 * (group * PARTS + part) + octet
            tl.store(at, ((scale >> (8 * octet)) & 0xFF).to(tl.uint8))
    if group == 0:
        used = tokens * (PARTS * RUN) + 4 * PARTS * tl.cdiv(tokens, GROUP)
        rest = used + tl.arange(0, 64)
        tl.store(slot + rest, tl.zeros_like(rest).to(tl.uint8), mask=rest < size)


@triton.jit(do_not_specialize=OF_A_CALL)
def decode_group(
    slots, layers, table, blocks, good, groups, count, strip_words, kv_heads,
    layer_first, layer_count, head_first, head_count,
    page_step, head_step, token_step, part_step,
    PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, RUN: tl.constexpr,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, ITEMS: tl.constexpr,
    FP8: tl.constexpr, ITEM: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """The engine's elements of these tokens, where the strip is good."""
    engine, codes, there, slot, group, tokens, _ = _group_of(
        slots, layers, table, blocks, groups, count, strip_words, kv_heads,
        layer_first, layer_count, head_first, head_count, page_step, head_step, token_step,
        PAGE_TOKENS, PARTS, RUN, GROUP, TOKENS, ITEMS, ITEM, PAIRED,
    )  # fmt: skip
    octet = tl.arange(0, 4)
    scales = slot + tokens * (PARTS * RUN)
    sound = tl.load(good + tl.program_id(0) // groups) != 0
    if sound & (group * GROUP < tokens):
        for part in tl.static_range(PARTS):
            held = tl.load(codes + part * RUN, mask=there, other=0).to(tl.int32)
            octets = tl.load(scales + 4 * (group * PARTS + part) + octet).to(tl.int32)
            scale = _floats(tl.sum(octets << (8 * octet), 0))
            value, nan = _meant(held, FP8)
            words = _narrowed(_bits(value * scale), FP8, ITEM)
            if ITEM == BF16:
                words = tl.where(nan, 0x7FC0, words | ((held & 0x80) << 8)).to(tl.int16)
            elif ITEM == FP16:
                words = tl.where(nan, 0x7E00, words | ((held & 0x80) << 8)).to(tl.int16)
            else:
                words = tl.where(nan, 0x7FC00000, words | ((held & 0x80) << 24))
            tl.store(engine + part * part_step, words, mask=there)
