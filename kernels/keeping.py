"""What blocks are kept by: the numbers of nodes' eviction, which the simulated hosts have too.

What they mean is said where nodes use them: `kvstore.core.ranking`, `life_table`, `rival` and
`gone`.
"""

from __future__ import annotations

TICK = 64  # uses of blocks
TICKS_MAX = 1 << 16  # use after a longer wait is not learned from
AGE_GROWTH = 1.4  # of an age class to the one before
KNOWN = 10.0  # blocks seen at an age that weigh as much as what all kinds together show
DOUBT = 0.5  # of their rate, for a kind of which nothing is known
FADE = 0.99  # of the counts, each time the worth is worked out
LEARN_TICKS = 24  # between two workings out of what blocks are worth

ONE_USE = 256  # a touch after fewer uses than one part in this of all blocks is no use of its own
MANY_USES = 8  # and more are one kind

SLACK = 0.004  # of LRU's hits
AGAIN = 2.0  # credit with which to try again
GIFT = AGAIN + 1  # at the start
CREDIT_SHARE = 8  # at most one credit for so many held blocks

REMEMBERED_MAX = 65_536  # blocks that are gone; more where more than that are held


def _starts() -> list[int]:
    found = [0, 1]
    while found[-1] < TICKS_MAX // 2:
        found.append(max(found[-1] + 1, int(found[-1] * AGE_GROWTH)))
    return found


STARTS = _starts()  # first tick of each age class
AGES = len(STARTS)
WIDTHS = [
    float(TICK * (end - start))
    for start, end in zip(STARTS, [*STARTS[1:], int(STARTS[-1] * AGE_GROWTH)], strict=True)
]  # of each, in uses
