"""How a strip is written in a slot where that is not as the engine has it: one byte an element.

A codec is a fact of the namespace, so blocks of two codecs never meet. What lies in a slot, on the
wire and on SSD is the coded strip; engines' own memory stays what the namespace's dtype says. A
strip of t tokens, K and V apart, in token groups of GROUP_TOKENS:

    codes    [token][K then V][element], one byte each
    scales   [token group][K, V], float32, little endian: one for the K, one for the V of a group
    zeros    up to a multiple of STRIP_ALIGN bytes

The last token group may be short. Its strip's hash covers all three. An element is code x scale:

    fp8      e4m3 (four bits of exponent, three of mantissa), scale the power of two that brings the
             group's largest magnitude into (224, 448]; rounded to nearest, ties to even
    int8     -127 to 127, scale the group's largest magnitude / 127; rounded likewise

What is not a finite number is kept as not one: code 0x7F of fp8 and -128 of int8 are NaN, for an
infinity too, and neither counts for the scale. A group whose largest magnitude is below 2**-100 has
scale 0. How far from x its decoded value may be, where s is the scale:

    fp8      max(|x| / 16, s / 1024), exactly; 2**-25 more in float16, 2**-100 where s is 0
    int8     s * 0.5001, and half a unit in the last place of the dtype; 2**-100 where s is 0

The scales are float32, since bfloat16's range is float32's; they cost 8 bytes in 4,096 of codes
(head dim 128). A group of a kind of engine's own interior order is coded by its runs of bytes in
the same manner, whatever of K and V they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.errors import Invalid

NONE = "none"
CODECS = (NONE, "fp8", "int8")
CODED_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""The dtypes that can be coded, and the bytes of an element of each."""
GROUP_TOKENS = 16  # share a scale: one loud token coarsens no more than these
SCALE_BYTES = 4
STRIP_ALIGN = 64  # a cache line: the next strip begins on one too


@dataclass(frozen=True, slots=True)
class Coding:
    """A codec other than none, and the dtype that engines have."""

    codec: str
    dtype: str

    @classmethod
    def of(cls, codec: str, dtype: str) -> Coding | None:
        """None where slots hold what engines have; raises `Invalid` for what cannot be."""
        if codec not in CODECS:
            known = ", ".join(CODECS)
            raise Invalid(f"codec {codec!r} is not supported by this release; use {known}")
        if codec == NONE:
            return None
        if dtype not in CODED_BYTES:
            coded = ", ".join(CODED_BYTES)
            raise Invalid(f"codec {codec!r} is for {coded}; {dtype} is a byte already: use none")
        return cls(codec, dtype)

    def strip_bytes(self, tokens: int, parts: int, run_bytes: int) -> int:
        """Bytes of a strip whose tokens have `parts` runs of `run_bytes` at the engine."""
        codes = tokens * parts * (run_bytes // CODED_BYTES[self.dtype])
        scales = -(-tokens // GROUP_TOKENS) * parts * SCALE_BYTES
        return -(-(codes + scales) // STRIP_ALIGN) * STRIP_ALIGN
