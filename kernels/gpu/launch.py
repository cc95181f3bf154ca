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
# What is hashed at once is a block of xxh3, 128 words: more than 4 warps would have nothing to do.
_STRIPS = _from(Launch(4), *itertools.starmap(Launch, itertools.product((1, 2, 4), (1, 2, 3, 4))))
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


def default(program: str) -> Launch:
    return CANDIDATES[program][0]


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
