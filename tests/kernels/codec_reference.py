"""What a coded strip must be, worked out another way: exact fractions of numpy's float64.

Codes are found by looking the scaled number up among all that a code can mean, not by bits.
"""

from __future__ import annotations

import numpy as np

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GROUP, ALIGN = 16, 64
LEAST = 2.0**-100


def fp8_meanings() -> np.ndarray:
    """Of codes 0..126, ascending."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(
        exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(float) - 10)
    )


MEANINGS = fp8_meanings()
assert MEANINGS[-1] == 448 and MEANINGS[8] == 2.0**-6


def numbers(raw: np.ndarray, dtype: str) -> np.ndarray:
    """An engine's bytes, whose last axis is a run, as float64: exact for every dtype."""
    raw = np.ascontiguousarray(raw)
    with np.errstate(invalid="ignore"):
        if dtype == "bfloat16":
            bits = raw.view("<u2").astype(np.uint32) << 16
            return bits.view(np.float32).astype(np.float64)
        return raw.view("<f2" if dtype == "float16" else "<f4").astype(np.float64)


def raw_of(x: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as an engine keeps them: bytes, bfloat16 cut off."""
    if dtype == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return x.astype("<f2" if dtype == "float16" else "<f4").view(np.uint8)


def scale_of(x: np.ndarray, codec: str) -> np.float32:
    finite = np.abs(x[np.isfinite(x)])
    largest = finite.max() if finite.size else 0.0
    if largest < LEAST:
        return np.float32(0)
    if codec == "int8":
        return np.float32(largest) / np.float32(127)
    power = np.ceil(np.log2(largest / 448))
    while largest > 448 * 2.0**power:  # a logarithm is rounded
        power += 1
    while largest <= 448 * 2.0 ** (power - 1):
        power -= 1
    return np.float32(2.0**power)


def encode(x: np.ndarray, codec: str, scale: np.float32) -> np.ndarray:
    """Codes of numbers that share a scale."""
    finite = np.isfinite(x)
    held = np.where(finite, x, 0.0)
    if codec == "int8":
        largest = np.float32(np.abs(held).max(initial=0.0))
        inverse = np.float32(127) / largest if scale else np.float32(0)
        code = np.rint(held.astype(np.float32) * inverse).astype(np.int64)
        assert (np.abs(code) <= 127).all()
        return np.where(finite, code, -128).astype(np.int8).view(np.uint8)
    share = np.abs(held) / np.float64(scale) if scale else np.zeros_like(held)
    above = np.searchsorted(MEANINGS, share).clip(1, 126)
    below = above - 1
    up, down = MEANINGS[above] - share, share - MEANINGS[below]
    even = np.where(above % 2 == 0, above, below)
    code = np.where(up < down, above, np.where(down < up, below, even))
    code = np.where(share == 0, 0, code)
    code = code | np.where(np.signbit(x), 0x80, 0)
    return np.where(finite, code, 0x7F).astype(np.uint8)


def meanings(codes: np.ndarray, codec: str) -> np.ndarray:
    """What codes say before their scale, as float64."""
    if codec == "int8":
        code = codes.view(np.int8).astype(np.float64)
        return np.where(code == -128, np.nan, code)
    held = codes & 0x7F
    value = np.append(MEANINGS, np.nan)[held]
    return np.where(codes & 0x80, -value, value)


def strip_of(raw: np.ndarray, dtype: str, codec: str) -> np.ndarray:
    """The coded strip of (tokens, parts, run bytes)."""
    x = numbers(raw, dtype)
    codes = np.zeros(x.shape, np.uint8)
    scales = []
    for first in range(0, len(x), GROUP):
        for part in range(x.shape[1]):
            some = x[first : first + GROUP, part]
            scale = scale_of(some, codec)
            codes[first : first + GROUP, part] = encode(some, codec, scale)
            scales.append(scale)
    strip = codes.tobytes() + np.array(scales, "<f4").tobytes()
    strip += bytes(-len(strip) % ALIGN)
    return np.frombuffer(strip, np.uint8)


def scales_in(strip: np.ndarray, tokens: int, parts: int, elements: int) -> np.ndarray:
    """(tokens, parts, 1): the scale of each token's part."""
    at = tokens * parts * elements
    groups = -(-tokens // GROUP)
    scales = strip[at : at + groups * parts * 4].copy().view("<f4").reshape(groups, parts)
    return np.repeat(scales, GROUP, axis=0)[:tokens, :, None].astype(np.float64)


def bound(
    x: np.ndarray, scale: np.ndarray, codec: str, dtype: str, found: np.ndarray
) -> np.ndarray:
    """How far a finite x may be from what comes back, as `kvstore.codec` promises."""
    found = np.where(np.isfinite(found), found, 0)
    none = np.where(scale == 0, LEAST, 0.0)
    if codec == "fp8":
        fixed = 2.0**-25 if dtype == "float16" else 0.0
        return np.maximum(np.abs(x) / 16, scale / 1024) + fixed + none
    bits, least = {"float32": (24, -149), "bfloat16": (8, -133), "float16": (11, -24)}[dtype]
    _, exponent = np.frexp(found)  # in [2**(e-1), 2**e): units are 2**(e-bits)
    unit = np.ldexp(1.0, np.maximum(exponent - bits, least))
    return scale * 0.5001 + unit / 2 + none


def decoded(strip: np.ndarray, shape: tuple[int, int, int], dtype: str, codec: str) -> np.ndarray:
    """What a strip means, (tokens, parts, elements): float32's product, to the nearest of dtype."""
    codes = strip[: int(np.prod(shape))].reshape(shape)
    with np.errstate(over="ignore"):
        product = (meanings(codes, codec) * scales_in(strip, *shape)).astype(np.float32)
    largest = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38}
    product = product.clip(*(np.float32(sign * largest.get(dtype, 65504.0)) for sign in (-1, 1)))
    product = np.where((codes & 0x80 != 0) & (product == 0), np.float32(-0.0), product)
    if dtype == "float16":
        product = product.astype(np.float16)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(product).view(np.uint32)
        even = bits + 0x7FFF + ((bits >> 16) & 1)
        product = np.where(np.isnan(product), product, (even & 0xFFFF0000).view(np.float32))
    return product.astype(np.float64)
