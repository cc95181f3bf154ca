"""One machine word or run of bytes at an address, read, written or multiplied exactly once.

Numba has no notion of a raw address, an unaligned word or a 128-bit product, so each is one
LLVM instruction emitted here. None of them checks an address: the caller has.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

I8, I32, I64, I128 = (ir.IntType(bits) for bits in (8, 32, 64, 128))
types: Any = numba.types
U64 = types.uint64
instruction: Any = intrinsic
"""Called from a kernel without the typing context its declaration shows."""
LANES = ir.VectorType(I64, 8)


def pointer(builder: Any, address: Any, kind: Any, offset: int = 0) -> Any:
    if offset:
        address = builder.add(address, ir.Constant(I64, offset))
    return builder.inttoptr(address, kind.as_pointer())


@instruction
def load_64(typing: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(pointer(builder, args[0], I64), align=1)

    return U64(U64), emit


@instruction
def load_32(typing: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(pointer(builder, args[0], I32), align=1), I64)

    return U64(U64), emit


@instruction
def load_8(typing: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(pointer(builder, args[0], I8), align=1), I64)

    return U64(U64), emit


@instruction
def load_published(typing: Any, address: Any) -> Any:
    """The word, and with it everything its writer stored before it. Aligned to eight bytes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], I64), "acquire", 8)

    return U64(U64), emit


@instruction
def publish(typing: Any, address: Any, word: Any) -> Any:
    """Store the word after everything stored before it. Aligned to eight bytes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], pointer(builder, args[0], I64), "release", 8)
        return context.get_dummy_value()

    return types.void(U64, U64), emit


@instruction
def byteswap(typing: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return U64(U64), emit


@instruction
def product(typing: Any, left: Any, right: Any) -> Any:
    """The low and high words of a 64 by 64 bit product."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = builder.mul(builder.zext(args[0], I128), builder.zext(args[1], I128))
        low = builder.trunc(wide, I64)
        high = builder.trunc(builder.lshr(wide, ir.Constant(I128, 64)), I64)
        return context.make_tuple(builder, signature.return_type, (low, high))

    return types.UniTuple(U64, 2)(U64, U64), emit


@instruction
def store_8(typing: Any, address: Any, byte: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], I8), pointer(builder, args[0], I8))
        return context.get_dummy_value()

    return types.void(U64, U64), emit


@instruction
def copy_line(typing: Any, target: Any, source: Any) -> Any:
    """Copy 64 bytes, inline: a call costs as much as a short run's copy."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = builder.load(pointer(builder, args[1], LANES), align=1)
        builder.store(line, pointer(builder, args[0], LANES), align=1)
        return context.get_dummy_value()

    return types.void(U64, U64), emit


def emit_store(builder: Any, value: Any, place: Any, stream: bool) -> None:
    """Store at a place of any alignment, or past the cache at one aligned to 64 bytes.

    What is written is a cold slot or page. To read its lines in only to overwrite them would cost
    a third of the memory traffic and evict what is of use. A `fence` must follow before another
    thread is told of the bytes.
    """
    store = builder.store(value, place, align=64 if stream else 1)
    if stream:
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


@instruction
def stream_line(typing: Any, target: Any, source: Any) -> Any:
    """Copy 64 bytes past the cache."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = builder.load(pointer(builder, args[1], LANES), align=1)
        emit_store(builder, line, pointer(builder, args[0], LANES), stream=True)
        return context.get_dummy_value()

    return types.void(U64, U64), emit


def emit_prefetch(builder: Any, address: Any, offset: int, writing: int = 0) -> None:
    byte, flags = I8.as_pointer(), [ir.Constant(I32, flag) for flag in (writing, 3, 1)]
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    builder.call(hint, [pointer(builder, address, I8, offset), *flags])


@instruction
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the line ahead of its use. An address that is not mapped is not an error."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit_prefetch(builder, args[0], 0)
        return context.get_dummy_value()

    return types.void(U64), emit


@instruction
def fence(typing: Any) -> Any:
    """Finish every store made so far, those past the cache too, before any that follows."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit
