"""One strip, coded on its way from an engine's pages into its slot, or decoded on its way out.

A strip is its codes, then its scales, then zeros to whole lines: every byte of it is written, so
equal KV has equal bytes. Going in, the tokens that share scales are read twice, once for their
largest magnitudes, and coded into a room that stays in the nearest cache; from there on codes move
as any bytes do. Going out, each part of a strip is hashed just before it is decoded.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

from .accumulator import BLOCK, ROOM, absorb_block, begin
from .codec_vectors import (
    bf16_line_of_fp8,
    bf16_line_of_int8,
    bf16_of_fp8,
    bf16_of_int8,
    fp8_of_bf16,
    fp8_of_fp16,
    fp8_of_fp32,
    fp16_line_of_fp8,
    fp16_line_of_int8,
    fp16_of_fp8,
    fp16_of_int8,
    fp32_line_of_fp8,
    fp32_line_of_int8,
    fp32_of_fp8,
    fp32_of_int8,
    int8_of_bf16,
    int8_of_fp16,
    int8_of_fp32,
    peak_bf16,
    peak_fp16,
    peak_fp32,
    quotient,
    store_32,
    widen_fp16,
)
from .inner import inner
from .memory import load_32, prefetch, store_8
from .strip_move import LINE, SCALE, address_of, finished, move, size_of
from .xxh3 import U

FP8 = 1  # of codecs; the other is int8
BF16, FP16 = 0, 1  # of items; the third is fp32
LEAST = U((127 - 100) << 23)
"""2**-100, the least magnitude that is told from zero: nothing on the way is subnormal."""
INT8_LARGEST = U(0x42FE0000)  # 127.0


@inner
def desk_words(slot: Any) -> Any:
    """Of the room for what is on its way: addresses of tokens, parts' peaks, a group's codes."""
    codes = slot.group_tokens * slot.parts * slot.code_bytes
    return 2 * slot.group_tokens + slot.parts + codes // 8 + 1


@inner
def peak(item: Any, source: Any, count: Any, held: Any) -> Any:
    if item == BF16:
        return peak_bf16(source, count, held)
    if item == FP16:
        return peak_fp16(source, count, held)
    return peak_fp32(source, count, held)


@inner
def scales_of(slot: Any, largest: Any) -> Any:
    """Scale and its inverse, as float32 bits, for the largest magnitude of an item's bits."""
    if slot.item == BF16:
        largest = largest << U(16)
    elif slot.item == FP16:
        largest = widen_fp16(largest)
    if largest < LEAST:
        return U(0), U(0)
    if slot.codec == FP8:
        # 448 is 1.75 x 2**8: a mantissa beyond .75 takes one power of two more.
        power = (largest >> U(23)) - U(8)
        if (largest & U(0x7FFFFF)) > U(0x600000):
            power += U(1)
        return power << U(23), (U(254) - power) << U(23)
    return quotient(largest, INT8_LARGEST), quotient(INT8_LARGEST, largest)


@inner
def encode_run(slot: Any, target: Any, source: Any, inverse: Any) -> None:
    count = U(slot.code_bytes)
    if slot.codec == FP8:
        if slot.item == BF16:
            fp8_of_bf16(target, source, count, inverse)
        elif slot.item == FP16:
            fp8_of_fp16(target, source, count, inverse)
        else:
            fp8_of_fp32(target, source, count, inverse)
    elif slot.item == BF16:
        int8_of_bf16(target, source, count, inverse)
    elif slot.item == FP16:
        int8_of_fp16(target, source, count, inverse)
    else:
        int8_of_fp32(target, source, count, inverse)


@inner
def decode_run(slot: Any, target: Any, source: Any, scale: Any) -> None:
    count = U(slot.code_bytes)
    if slot.codec == FP8:
        if slot.item == BF16:
            bf16_of_fp8(target, source, count, scale)
        elif slot.item == FP16:
            fp16_of_fp8(target, source, count, scale)
        else:
            fp32_of_fp8(target, source, count, scale)
    elif slot.item == BF16:
        bf16_of_int8(target, source, count, scale)
    elif slot.item == FP16:
        fp16_of_int8(target, source, count, scale)
    else:
        fp32_of_int8(target, source, count, scale)


@inner
def decode_lines(slot: Any, target: Any, source: Any, scale: Any) -> None:
    """`decode_run` past the cache, to a target aligned to 64 bytes."""
    count = U(slot.code_bytes)
    if slot.codec == FP8:
        if slot.item == BF16:
            bf16_line_of_fp8(target, source, count, scale)
        elif slot.item == FP16:
            fp16_line_of_fp8(target, source, count, scale)
        else:
            fp32_line_of_fp8(target, source, count, scale)
    elif slot.item == BF16:
        bf16_line_of_int8(target, source, count, scale)
    elif slot.item == FP16:
        fp16_line_of_int8(target, source, count, scale)
    else:
        fp32_line_of_int8(target, source, count, scale)


@inner
def encode_strip(
    lanes: Any, desk: Any, strip: Any, base: Any, table: Any, steps: Any, slot: Any,
    start: Any, tokens: Any,
) -> Any:  # fmt: skip
    """Code the engine's head at `base` into a strip. Returns the strip's hash."""
    group, parts, run = slot.group_tokens, slot.parts, slot.code_bytes
    n = size_of(tokens, parts, run, group)
    codes = tokens * parts * run
    peaks = 2 * group  # behind the addresses of this group's tokens and of the next one's
    room = U(desk.ctypes.data) + U(8 * (peaks + parts))
    block = lanes + U(ROOM)
    scales = strip + U(codes)
    begin(lanes)
    for token in range(min(group, tokens)):
        desk[token] = address_of(base, table, steps, start + token)
    for first in range(0, tokens, group):
        count = min(group, tokens - first)
        for part in range(parts):
            desk[peaks + part] = U(0)
        for token in range(first, first + count):
            if token + group < tokens:
                soon = address_of(base, table, steps, start + token + group)
                desk[(token + group) % peaks] = soon
                for part in range(parts):
                    for line in range(0, slot.run_bytes, LINE):
                        prefetch(soon + U(part * steps.part + line))
            at = desk[token % peaks]
            for part in range(parts):
                known = desk[peaks + part]
                desk[peaks + part] = peak(slot.item, at + U(part * steps.part), U(run), known)
        for part in range(parts):
            scale, inverse = scales_of(slot, desk[peaks + part])
            store_32(scales, scale)
            scales += U(SCALE)
            coded = room + U(part * run)
            for token in range(first, first + count):
                encode_run(slot, coded, desk[token % peaks] + U(part * steps.part), inverse)
                coded += U(parts * run)
        move(lanes, block, strip, first * parts * run, n, room, count * parts * run, False)
    for place in range(codes + -(-tokens // group) * parts * SCALE, n):
        store_8(strip + U(place), U(0))
    # What follows the codes lies where it belongs; `move` hashes it, with the codes before it.
    move(lanes, block, strip, codes, n, strip + U(codes), n - codes, False)
    return finished(lanes, strip, n)


@inner
def decode_strip(
    lanes: Any, strip: Any, base: Any, table: Any, steps: Any, slot: Any, start: Any, tokens: Any
) -> Any:
    """Decode a strip into the engine's head at `base`. Returns the hash of what was decoded."""
    group, parts, run = slot.group_tokens, slot.parts, slot.code_bytes
    n = size_of(tokens, parts, run, group)
    scales = strip + U(tokens * parts * run)
    prefetch(scales)
    begin(lanes)
    folded = 0
    near = strip
    for first in range(0, tokens, group):
        count = min(group, tokens - first)
        folded = fold_to(lanes, strip, folded, n, (first + count) * parts * run)
        for token in range(start + first, start + first + count):
            far = address_of(base, table, steps, token)
            for part in range(parts):
                scale = load_32(scales + U(part * SCALE))
                place = far + U(part * steps.part)
                if (place | U(slot.run_bytes)) % U(LINE) == U(0):
                    decode_lines(slot, place, near, scale)
                else:
                    decode_run(slot, place, near, scale)
                near += U(run)
        scales += U(parts * SCALE)
    fold_to(lanes, strip, folded, n, n)
    return finished(lanes, strip, n)


@inner
def fold_to(lanes: Any, strip: Any, folded: Any, n: Any, end: Any) -> Any:
    """Hash the strip's whole blocks that begin before `end`; how far that is."""
    while folded < end and folded + BLOCK <= n:
        absorb_block(lanes, folded + BLOCK == n, strip + U(folded))
        folded += BLOCK
    return folded
