"""Which blocks in DRAM are written to SSD, in which order, and which are not worth it: decided
here, carried out by `kvstore.node.write_back`.

While SSD has room everything is written: a copy costs a write, lets DRAM give its place away
without a loss, and is there after a restart. Once it is full a block must be worth at least what it
would displace, by what the node has learned of the reuse of blocks of its kind; one that is passed
over is looked at again when it is used. What somebody wants to be durable is always written.

When much of DRAM would be lost with its place, what is worth most of those that came first goes
first; else first come, first served. Nothing here depends on the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.core.lifecycle import Slot

PRESSED, EASED = 0.5, 0.25  # share of DRAM that is on SSD not yet: when worth begins to count, ends


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sealed block that is in DRAM alone."""

    slot: Slot
    asked: bool  # somebody waits for its being durable
    worth: float  # of keeping it, as the index says
    displaced: float | None  # worth of what would make room for it on SSD; None: there is room


@dataclass(frozen=True, slots=True)
class TierView:
    """What the plan is made from."""

    pressed: bool
    waiting: Sequence[Waiting]  # the front of the line, in the order they came


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of one block: it is written to SSD, or stays in DRAM alone."""

    slot: Slot
    write: bool


def presses(alone: float, before: bool) -> bool:
    """Whether too large a share of DRAM is not on SSD, with hysteresis."""
    return alone > (EASED if before else PRESSED)


def plan(view: TierView) -> list[Move]:
    """A move for each block that waits, the most urgent first."""
    order = sorted(
        view.waiting, key=lambda one: (not one.asked, -one.worth if view.pressed else 0.0)
    )
    return [Move(one.slot, _admitted(one)) for one in order]


def _admitted(one: Waiting) -> bool:
    return one.asked or one.displaced is None or one.worth >= one.displaced
