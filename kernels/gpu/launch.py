"""How the programs here are launched: what a launch may be, and of which shapes one is chosen.

Whatever is chosen, the bytes are the same, and attention's but for the order of its sums. So what
may be chosen is written down here, a few `candidates` a program, and no table and no device can
make it anything else. The first of them is the default: what a device has that nobody measured.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ..shapes import CODECS

WARP = 32  # threads
# What differs from call to call. Of a number Triton would compile one program for 1, one for
# multiples of 16 and one for others, and all their combinations, each when it is first met.
OF_A_CALL = ("count", "layer_first", "layer_count", "head_first", "head_count")
OF_A_STEP = ("tables", "spans", "table_step")


@dataclass(frozen=True, slots=True)
class Launch:
    """Of one program: threads in warps; `stages` turns of its loop are under way at once, so that 1
    fetches nothing ahead; `block` is how much it looks at at once, where that is to be chosen: the
    words of a tile, the positions of a turn."""

    warps: int
    stages: int = 1
    block: int = 0

    @property
    def how(self) -> dict[str, int]:
        """As Triton is told."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    def __str__(self) -> str:
        block = f"block {self.block}, " if self.block else ""
        return f"{block}warps {self.warps}, stages {self.stages}"


def _from(default: Launch, *others: Launch) -> tuple[Launch, ...]:
    return (default, *(one for one in others if one != default))


# A thread that has one word of a tile has nothing else to ask for while it waits; one that has more
# than 32 has no registers left for where they lie.
_TILES = _from(
    Launch(4, block=1024),
    *(
        Launch(warps, block=block)
        for block, warps in itertools.product((256, 512, 1024, 2048, 4096), (1, 2, 4, 8))
        if 2 <= block // (WARP * warps) <= 32
    ),
)
# What is hashed at once are blocks of xxh3, 128 words each. One warp has them without waiting for
# another; several are for when there are too few strips to go round.
_STRIPS = _from(
    Launch(1, 1, 256),
    *(
        Launch(warps, stages, words)
        for words, warps, stages in itertools.product((128, 256, 512), (1, 2, 4), (1, 3))
        if words >= 128 * warps or words == 256 == 64 * warps
    ),
)
_NO_LOOP = _from(Launch(4), *map(Launch, (1, 2, 8)))
# Each warp has 8 positions of a score or more. A page's number must be there before its keys can be
# asked for, so a turn further ahead takes two stages: 4 make the same program as 3 (Triton 3.9).
_ATTENTION = _from(
    Launch(4, 3, 64),
    *(
        Launch(warps, stages, positions)
        for positions, warps, stages in itertools.product((32, 64, 128), (2, 4, 8), (1, 2, 3, 5))
        if positions >= 8 * warps
    ),
)
CANDIDATES: dict[str, tuple[Launch, ...]] = {
    "gather_tile": _TILES,
    "scatter_tile": _TILES,
    "gather_strip": _STRIPS,
    "scatter_strip": _STRIPS,
    "verify_strip": _STRIPS,
    "enter_strip": _STRIPS,
    "encode_group": _NO_LOOP,
    "decode_group": _NO_LOOP,
    "attend": _ATTENTION,  # attend_rows and attend_part, which have one loop
    "join_parts": _NO_LOOP,
}


# What attention has where nothing was measured: of these the first that fits. Less is given up by
# looking at fewer positions than by fetching nothing ahead, and 2 stages want as much as 3.
_ATTENTION_FITTED = (Launch(4, 3, 64), Launch(4, 3, 32), Launch(4, 1, 32))
assert _ATTENTION_FITTED[0] == _ATTENTION[0] and set(_ATTENTION_FITTED) <= set(_ATTENTION)
_SLACK_BYTES = 1024


def default(program: str) -> Launch:
    return CANDIDATES[program][0]


def fitted(item_bytes: int, wide: int, rows: int, shared_bytes: int) -> Launch:
    """That of attention on a device that gives a program so much shared memory; the rest is as of
    `attention_shape`. All other programs fit every device. Raises `ValueError`."""
    for launch in _ATTENTION_FITTED:
        if attention_bytes(launch, item_bytes, wide, rows) <= shared_bytes:
            return launch
    wanted = attention_bytes(_ATTENTION_FITTED[-1], item_bytes, wide, rows)
    raise ValueError(
        f"attention of heads of {wide} numbers of {item_bytes} bytes wants {wanted} bytes of "
        f"shared memory; the device gives a program {shared_bytes}"
    )


def attention_bytes(launch: Launch, item_bytes: int, wide: int, rows: int) -> int:
    """Of shared memory, that attention wants at most, launched so: its queries, one turn's scores,
    and the turns' keys and values that are there or on their way. These take turns in one place,
    but where Hopper multiplies 64 rows at once. (Triton 3.9 asks for no more: `test_compiled`.)"""
    turns = 1 if launch.stages == 1 else max(2, launch.stages - 1)
    places = 2 * turns if item_bytes == 2 and rows >= 64 else turns
    held = item_bytes * wide * (rows + places * launch.block)
    return held + 4 * rows * launch.block + _SLACK_BYTES


# Shapes are told apart only where another launch may be the better one, or may not fit a device:
# attention of wide elements wants more shared memory than the same launch of narrow ones.


def tile_shape(word_bytes: int, strip_bytes: int) -> str:
    return f"words of {word_bytes}, {strip_shape(strip_bytes)}"


def strip_shape(strip_bytes: int) -> str:
    for most in (8, 32):
        if strip_bytes <= most << 10:
            return f"strips to {most} KiB"
    return "longer strips"


def group_shape(codec: str, item_bytes: int, items: int) -> str:
    """`items`: of one part of the tokens that share scales."""
    assert codec in CODECS[1:]
    return f"{codec}, items of {item_bytes}, {'to' if items <= 2048 else 'over'} 2048"


def attention_shape(item_bytes: int, wide: int, rows: int, page_tokens: int) -> str:
    """`wide`: a head's dim, up to the next power of two; `rows`: of a program."""
    many = "16 rows" if rows <= 16 else "more rows"
    pages = "pages of 16" if page_tokens >= 16 else "smaller pages"
    return f"items of {item_bytes}, heads of {wide}, {many}, {pages}"
