"""Runs of numbers to codes of one byte and back, many at a time, as the processor's vectors go.

Everything that rounds is one IEEE operation or whole-number arithmetic on a float's bits, so that
the same numbers have the same codes on every machine, in a thread that flushes subnormal numbers
too. Written as LLVM vectors of any width, like the hash; no target is named. Nothing here checks an
address.

Bits of a float32: a sign, 8 of exponent (bias 127), 23 of mantissa. Of an e4m3: a sign, 4 (bias 7),
3; no infinity, and all ones is NaN.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils as untyped_cgutils

from .memory import I8, I32, I64, U64, emit_store, instruction, pointer, types

cgutils: Any = untyped_cgutils
I16, F32 = ir.IntType(16), ir.FloatType()
WIDTHS = (32, 8, 1)
"""Elements at a time: as many as a line of 16-bit numbers has, then what is left of the run."""
INFINITY, MAGNITUDE, SIGN = 0x7F800000, 0x7FFFFFFF, 0x80000000
"""Of a float32's bits."""
FP8_NAN, INT8_NAN = 0x7F, 0x80
FP8_NORMAL, FP16_NORMAL = (127 - 6) << 23, (127 - 14) << 23
"""2**-6 and 2**-14, the least whose mantissas have a leading one, as float32 bits."""
TO_WHOLE = 1.5 * 2.0**23
"""A float32 to which this is added keeps whole numbers only, to nearest and ties to even."""
TO_FP8_SUBNORMAL, TO_FP16_SUBNORMAL = 2.0**14, 2.0**-1
"""And to which these are added, multiples of 2**-9 and of 2**-24 only."""


class Item(NamedTuple):
    """An element at the engine, as bits."""

    word: Any
    infinity: int
    largest: int  # as float32 bits
    nan: int


BF16 = Item(I16, 0x7F80, 0x7F7F0000, 0x7FC0)
FP16 = Item(I16, 0x7C00, 0x477FE000, 0x7E00)
FP32 = Item(I32, INFINITY, INFINITY - 1, 0x7FC00000)


class _Vector:
    """Operations on so many lanes at once. Constants are repeated in every lane."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.b, self.lanes = builder, lanes

    def of(self, kind: Any) -> Any:
        return ir.VectorType(kind, self.lanes)

    def all(self, kind: Any, value: Any) -> Any:
        return ir.Constant(self.of(kind), [value] * self.lanes)

    def word(self, value: int) -> Any:
        return self.all(I32, value)

    def spread(self, scalar: Any) -> Any:
        """A scalar in every lane."""
        first = ir.Constant(I32, 0)
        empty = ir.Constant(self.of(scalar.type), ir.Undefined)
        one = self.b.insert_element(empty, scalar, first)
        return self.b.shuffle_vector(one, empty, self.word(0))

    def bits(self, floats: Any) -> Any:
        return self.b.bitcast(floats, self.of(I32))

    def floats(self, bits: Any) -> Any:
        return self.b.bitcast(bits, self.of(F32))

    def least(self, left: Any, right: Any) -> Any:
        return self.b.select(self.b.icmp_unsigned("<", left, right), left, right)

    def most(self, left: Any, right: Any) -> Any:
        return self.b.select(self.b.icmp_unsigned(">", left, right), left, right)

    def magnitude(self, item: Item, words: Any) -> Any:
        return self.b.and_(words, self.all(item.word, (1 << item.word.width - 1) - 1))

    def finite(self, item: Item, words: Any) -> Any:
        infinity = self.all(item.word, item.infinity)
        return self.b.icmp_signed("<", self.magnitude(item, words), infinity)

    def widen(self, item: Item, words: Any) -> Any:
        """The engine's elements as float32; what is not finite as anything."""
        b = self.b
        if item is FP32:
            return self.floats(words)
        wide = b.zext(words, self.of(I32))
        if item is BF16:
            return self.floats(b.shl(wide, self.word(16)))
        # In whole numbers: not every processor knows halves.
        held = b.and_(wide, self.word(0x7FFF))
        normal = b.add(b.shl(held, self.word(13)), self.word((127 - 15) << 23))
        low = b.fmul(b.uitofp(held, self.of(F32)), self.all(F32, 2.0**-24))
        small = b.icmp_signed("<", held, self.word(1 << 10))
        magnitude = b.select(small, self.bits(low), normal)
        sign = b.shl(b.and_(wide, self.word(0x8000)), self.word(16))
        return self.floats(b.or_(magnitude, sign))

    def narrow(self, item: Item, bits: int, magnitude: Any) -> Any:
        """Float32 magnitudes, as bits, as the engine's elements: nearest, and never an infinity.

        They have so many significant bits at most.
        """
        b = self.b
        held = self.least(magnitude, self.word(item.largest))
        if item is BF16:
            if bits > 8:
                held = self.rounded(held, 16)
            return b.trunc(b.lshr(held, self.word(16)), self.of(I16))
        if item is FP16:
            rounded = b.lshr(self.rounded(held, 13), self.word(13))
            normal = b.sub(rounded, self.word((127 - 15) << 10))
            raised = b.fadd(self.floats(held), self.all(F32, TO_FP16_SUBNORMAL))
            low = b.and_(self.bits(raised), self.word(0x7FFF))
            small = b.icmp_signed("<", held, self.word(FP16_NORMAL))
            return b.trunc(b.select(small, low, normal), self.of(I16))
        return held

    def rounded(self, magnitude: Any, bits: int) -> Any:
        """Magnitudes whose last bits may be cut off: nearest, ties to even."""
        odd = self.b.and_(self.b.lshr(magnitude, self.word(bits)), self.word(1))
        return self.b.add(magnitude, self.b.add(odd, self.word((1 << bits - 1) - 1)))

    # -- what the codecs are: from scaled float32 to codes in 32 bits, and from codes to which of
    # -- them are NaN and what the others mean, less their sign, which is their first bit ---------

    def to_fp8(self, scaled: Any, sign: Any) -> Any:
        b = self.b
        held = b.and_(self.bits(scaled), self.word(MAGNITUDE))
        rounded = b.lshr(self.rounded(held, 20), self.word(20))
        normal = b.sub(rounded, self.word((127 - 7) << 3))
        raised = b.fadd(self.floats(held), self.all(F32, TO_FP8_SUBNORMAL))
        low = b.and_(self.bits(raised), self.word(0xFF))
        small = b.icmp_signed("<", held, self.word(FP8_NORMAL))
        return b.or_(b.select(small, low, normal), b.lshr(sign, self.word(24)))

    def to_int8(self, scaled: Any, sign: Any) -> Any:
        return self.bits(self.b.fadd(scaled, self.all(F32, TO_WHOLE)))

    def of_fp8(self, codes: Any) -> tuple[Any, Any]:
        b = self.b
        held = b.and_(codes, self.all(I8, 0x7F))
        wide = b.zext(held, self.of(I32))
        normal = b.add(b.shl(wide, self.word(20)), self.word((127 - 7) << 23))
        low = b.fmul(b.uitofp(wide, self.of(F32)), self.all(F32, 2.0**-9))
        small = b.icmp_signed("<", wide, self.word(1 << 3))
        nan = b.icmp_signed("==", held, self.all(I8, FP8_NAN))
        return nan, self.floats(b.select(small, self.bits(low), normal))

    def of_int8(self, codes: Any) -> tuple[Any, Any]:
        b = self.b
        negative = b.icmp_signed("<", codes, self.all(I8, 0))
        held = b.select(negative, b.sub(self.all(I8, 0), codes), codes)
        value = b.uitofp(b.zext(held, self.of(I32)), self.of(F32))
        return b.icmp_signed("==", codes, self.all(I8, INT8_NAN)), value


class Codec(NamedTuple):
    nan: int
    bits: int  # significant, of a code times its scale
    encode: Callable[..., Any]
    decode: Callable[..., Any]


FP8 = Codec(FP8_NAN, 4, _Vector.to_fp8, _Vector.of_fp8)
INT8 = Codec(INT8_NAN, 24, _Vector.to_int8, _Vector.of_int8)


def _each(builder: Any, count: Any, emit: Callable[[_Vector, Any], None]) -> None:
    """Emit loops over `count` elements, widest first, each step at the index of its first."""
    done: Any = ir.Constant(I64, 0)
    for lanes in WIDTHS:
        width = ir.Constant(I64, lanes)
        steps = builder.udiv(builder.sub(count, done), width)
        with cgutils.for_range(builder, steps) as loop:
            emit(_Vector(builder, lanes), builder.add(done, builder.mul(loop.index, width)))
        done = builder.add(done, builder.mul(steps, width))


def _at(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    """Where the element at an index is, as a pointer to vectors of its kind."""
    size = kind.element.width // 8
    offset = builder.mul(index, ir.Constant(I64, size)) if size > 1 else index
    return pointer(builder, builder.add(base, offset), kind)


def _peak(item: Item) -> Any:
    @instruction
    def peak(typing: Any, source: Any, count: Any, held: Any) -> Any:
        """The largest finite magnitude of a run, or `held` if that is larger, as bits."""

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, count, held = args
            wide = _Vector(builder, WIDTHS[0])
            most = cgutils.alloca_once_value(builder, wide.all(item.word, 0))
            best = cgutils.alloca_once_value(builder, builder.trunc(held, item.word))

            def step(v: _Vector, index: Any) -> None:
                words = builder.load(_at(builder, source, index, v.of(item.word)), align=1)
                magnitude = v.magnitude(item, words)
                kept = builder.select(v.finite(item, words), magnitude, v.all(item.word, 0))
                if v.lanes == wide.lanes:  # lane by lane: across lanes once a run
                    builder.store(v.most(kept, builder.load(most)), most)
                else:
                    builder.store(v.most(_largest(builder, kept), builder.load(best)), best)

            _each(builder, count, step)
            across = _largest(builder, builder.load(most))
            return builder.zext(wide.most(across, builder.load(best)), I64)

        return U64(U64, U64, U64), emit

    return peak


def _largest(builder: Any, vector: Any) -> Any:
    kind = vector.type
    name = f"llvm.vector.reduce.umax.v{kind.count}i{kind.element.width}"
    reduce = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind.element, [kind]), name
    )
    return builder.call(reduce, [vector])


def _encode(item: Item, codec: Codec) -> Any:
    @instruction
    def encode(typing: Any, target: Any, source: Any, count: Any, inverse: Any) -> Any:
        """Codes of a run of elements, each times `inverse` (float32 bits)."""

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, source, count, inverse = args
            inverse = builder.bitcast(builder.trunc(inverse, I32), F32)

            def step(v: _Vector, index: Any) -> None:
                words = builder.load(_at(builder, source, index, v.of(item.word)), align=1)
                x = v.widen(item, words)
                scaled = builder.fmul(x, v.spread(inverse))
                code = codec.encode(v, scaled, builder.and_(v.bits(x), v.word(SIGN)))
                code = builder.trunc(code, v.of(I8))
                code = builder.select(v.finite(item, words), code, v.all(I8, codec.nan))
                builder.store(code, _at(builder, target, index, v.of(I8)), align=1)

            _each(builder, count, step)
            return context.get_dummy_value()

        return types.void(U64, U64, U64, U64), emit

    return encode


def _decode(item: Item, codec: Codec, stream: bool) -> Any:
    @instruction
    def decode(typing: Any, target: Any, source: Any, count: Any, scale: Any) -> Any:
        """Elements of a run of codes, each times `scale` (float32 bits)."""

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, source, count, scale = args
            scale = builder.bitcast(builder.trunc(scale, I32), F32)

            def step(v: _Vector, index: Any) -> None:
                codes = builder.load(_at(builder, source, index, v.of(I8)), align=1)
                nan, value = codec.decode(v, codes)
                magnitude = v.bits(builder.fmul(value, v.spread(scale)))
                wide = builder.zext(builder.and_(codes, v.all(I8, 0x80)), v.of(item.word))
                sign = builder.shl(wide, v.all(item.word, item.word.width - 8))
                words = builder.or_(v.narrow(item, codec.bits, magnitude), sign)
                words = builder.select(nan, v.all(item.word, item.nan), words)
                place = _at(builder, target, index, v.of(item.word))
                emit_store(builder, words, place, stream and v.lanes == WIDTHS[0])

            _each(builder, count, step)
            return context.get_dummy_value()

        return types.void(U64, U64, U64, U64), emit

    return decode


@instruction
def quotient(typing: Any, above: Any, below: Any) -> Any:
    """above / below, as float32 bits both and in what it returns."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        above, below = (builder.bitcast(builder.trunc(one, I32), F32) for one in args)
        return builder.zext(builder.bitcast(builder.fdiv(above, below), I32), I64)

    return U64(U64, U64), emit


@instruction
def widen_fp16(typing: Any, bits: Any) -> Any:
    """A finite float16's bits as the float32's."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Vector(builder, 1)
        wide = v.bits(v.widen(FP16, v.spread(builder.trunc(args[0], I16))))
        return builder.zext(builder.extract_element(wide, ir.Constant(I32, 0)), I64)

    return U64(U64), emit


@instruction
def store_32(typing: Any, address: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], I32), pointer(builder, args[0], I32), align=1)
        return context.get_dummy_value()

    return types.void(U64, U64), emit


ITEMS = (BF16, FP16, FP32)
peak_bf16, peak_fp16, peak_fp32 = map(_peak, ITEMS)
fp8_of_bf16, fp8_of_fp16, fp8_of_fp32 = (_encode(item, FP8) for item in ITEMS)
int8_of_bf16, int8_of_fp16, int8_of_fp32 = (_encode(item, INT8) for item in ITEMS)
bf16_of_fp8, fp16_of_fp8, fp32_of_fp8 = (_decode(item, FP8, False) for item in ITEMS)
bf16_of_int8, fp16_of_int8, fp32_of_int8 = (_decode(item, INT8, False) for item in ITEMS)
bf16_line_of_fp8, fp16_line_of_fp8, fp32_line_of_fp8 = (_decode(i, FP8, True) for i in ITEMS)
bf16_line_of_int8, fp16_line_of_int8, fp32_line_of_int8 = (_decode(i, INT8, True) for i in ITEMS)
