"""XXH3's eight lanes over whole 1 KiB blocks, at the processor's vector width.

The block is written once as LLVM vector operations: LLVM splits <8 x i64> for the machine at
hand (NEON, AVX2, AVX-512), and picks the widening 32-bit multiply because both factors visibly
have empty high halves. No target intrinsic is named, so every LLVM target compiles it.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils as untyped_cgutils

from .memory import I8, I32, I64, LANES, U64, emit_prefetch, emit_store, instruction, pointer, types

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
cgutils: Any = untyped_cgutils
STRIPE = 64
BLOCK = 1024
AHEAD = 1024
"""How far before its use a line is asked for: about what memory answers within."""
P32 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
    0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
START = [P32[2], *P64[:4], P32[1], P64[4], P32[0]]


def splat(value: int) -> Any:
    return ir.Constant(LANES, [value] * 8)


def key(offset: int) -> Any:
    """The secret's eight words from a byte offset, as a constant."""
    words = (SECRET[offset + 8 * lane :][:8] for lane in range(8))
    return ir.Constant(LANES, [int.from_bytes(word, "little") for word in words])


LAST_KEY = key(len(SECRET) - STRIPE - 7)
"""Of a message's last 64 bytes, which may overlap stripes already folded."""


def accumulate(builder: Any, lanes: Any, data: Any, secret: Any) -> Any:
    keyed = builder.xor(data, secret)
    low = builder.and_(keyed, splat(0xFFFFFFFF))
    high = builder.lshr(keyed, splat(32))
    neighbours = ir.Constant(ir.VectorType(I32, 8), [1, 0, 3, 2, 5, 4, 7, 6])
    swapped = builder.shuffle_vector(data, ir.Constant(LANES, ir.Undefined), neighbours)
    return builder.add(builder.add(lanes, swapped), builder.mul(low, high))


def scramble(builder: Any, lanes: Any) -> Any:
    mixed = builder.xor(lanes, builder.lshr(lanes, splat(47)))
    return builder.mul(builder.xor(mixed, key(len(SECRET) - STRIPE)), splat(P32[0]))


def emit_block(
    builder: Any, home: Any, last: Any, source: Any, target: Any = None, stream: bool = False
) -> None:
    """One block from `source` into the lanes at `home`, each stripe also stored at `target`.

    A message's `last` block, where it is whole, has another key for its last stripe, and is not
    scrambled.
    """
    home = pointer(builder, home, LANES)
    state = builder.load(home, align=8)
    for offset in range(0, BLOCK, STRIPE):
        emit_prefetch(builder, source, offset + AHEAD)
        data = builder.load(pointer(builder, source, LANES, offset), align=1)
        if target is not None:
            emit_store(builder, data, pointer(builder, target, LANES, offset), stream)
        secret = key(offset // 8)
        if offset == BLOCK - STRIPE:
            secret = builder.select(last, LAST_KEY, secret)
        state = accumulate(builder, state, data, secret)
    builder.store(builder.select(last, state, scramble(builder, state)), home, align=8)


SIDE = 16  # messages whose lanes there is place for
ROOM = SIDE * STRIPE
"""Behind these, a block's."""


@instruction
def stack_lanes(typing: Any) -> Any:
    """The address of `SIDE` times eight lanes and, behind them, a block's room: the kernel's till
    it returns.

    Not an array: each use of one is counted, and counting waits for every store past the cache.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(I8, ROOM + BLOCK))
            room.align = STRIPE
        return builder.ptrtoint(room, I64)

    return U64(), emit


@instruction
def begin(typing: Any, lanes: Any) -> Any:
    """What the lanes at an address are before a message."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(ir.Constant(LANES, START), pointer(builder, args[0], LANES), align=8)
        return context.get_dummy_value()

    return types.void(U64), emit


@instruction
def absorb_block(typing: Any, lanes: Any, last: Any, source: Any) -> Any:
    """Fold the 1 KiB at `source` into the lanes at an address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit_block(builder, *args)
        return context.get_dummy_value()

    return types.void(U64, types.boolean, U64), emit


@instruction
def copy_block(typing: Any, lanes: Any, last: Any, source: Any, target: Any) -> Any:
    """Fold the 1 KiB at `source` and copy it to `target`, reading it once."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit_block(builder, *args)
        return context.get_dummy_value()

    return types.void(U64, types.boolean, U64, U64), emit


@instruction
def stream_block(typing: Any, lanes: Any, last: Any, source: Any, target: Any) -> Any:
    """`copy_block` past the cache, to a target aligned to 64 bytes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit_block(builder, args[0], args[1], args[2], args[3], stream=True)
        return context.get_dummy_value()

    return types.void(U64, types.boolean, U64, U64), emit


@instruction
def absorb_stripes(typing: Any, lanes: Any, source: Any, count: Any, final: Any) -> Any:
    """Fold `count` stripes at `source`, fewer than a block's, then the message's last 64 bytes.

    The last 64 bytes may overlap stripes already folded: XXH3 keys them apart.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        home = pointer(builder, args[0], LANES)
        keys = ir.ArrayType(LANES, BLOCK // STRIPE)
        table = cgutils.global_constant(
            builder.module, "xxh3_stripe_keys", ir.Constant(keys, [key(8 * s) for s in range(16)])
        )
        zero = ir.Constant(I64, 0)
        state = cgutils.alloca_once_value(builder, builder.load(home, align=8))
        with cgutils.for_range(builder, args[2]) as loop:
            at = builder.add(args[1], builder.mul(loop.index, ir.Constant(I64, STRIPE)))
            data = builder.load(pointer(builder, at, LANES), align=1)
            secret = builder.load(builder.gep(table, [zero, loop.index]), align=8)
            builder.store(accumulate(builder, builder.load(state), data, secret), state)
        data = builder.load(pointer(builder, args[3], LANES), align=1)
        builder.store(accumulate(builder, builder.load(state), data, LAST_KEY), home, align=8)
        return context.get_dummy_value()

    return types.void(U64, U64, U64, U64), emit
