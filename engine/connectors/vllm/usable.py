"""How long a prefix can be had when every group has what it needs of it: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding-window group: which blocks of the prompt it has, and how far a token sees."""

    tokens: int
    present: npt.NDArray[np.bool_]  # (blocks,)

    @classmethod
    def of(cls, tokens: int, present: Sequence[bool]) -> Window:
        return cls(tokens, np.array(present, dtype=bool))


def window_start(end: int, window_tokens: int) -> int:
    """The first token that one at `end` sees: itself and `window_tokens` - 1 before it."""
    return max(0, end - window_tokens + 1)


def usable_tokens(
    chain_blocks: int, windows: Sequence[Window], block_tokens: int, align: int, most: int
) -> int:
    """The longest prefix, in tokens, with `chain_blocks` leading blocks and all windows whole.

    It ends on a block, is a multiple of `align`, and is at most `most`.
    """
    blocks = min(chain_blocks, most // block_tokens)
    while blocks > 0:
        end = blocks * block_tokens
        if end % align:
            blocks -= 1
            continue
        hole = -1
        for window in windows:
            first = window_start(end, window.tokens) // block_tokens
            missing = np.flatnonzero(~window.present[first:blocks])
            if len(missing):
                hole = max(hole, first + int(missing[-1]))
        if hole < 0:
            return end
        # A shorter prefix whose window still covers the last hole is no better.
        blocks = hole
    return 0
