"""Held blocks by the chain that they belong to, each with what stands before it.

A block is of use to whoever has everything before it. So where blocks go to another node, they go
by chains, and what stands before them goes along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from kvstore.core.lifecycle import Owner, Slot

Peek: TypeAlias = Callable[[bytes], Slot | None]  # the held slot of a key, as `Index.peek` has it


@dataclass(slots=True)
class Part:
    """Blocks of one chain, or of chains that branch from one first block."""

    tenant: str
    owner: Owner
    first: bytes  # key of the first block, or of the first that is not held
    keys: list[bytes] = field(default_factory=list)  # asked for, each after its parent
    line: list[bytes] = field(default_factory=list)  # the same and all that stands before them
    tip: bytes = b""  # what stands before the first of `keys`; empty where nothing does


def parts(peek: Peek, keys: Iterable[bytes]) -> list[Part]:
    """Those of the keys that are held, in the order in which the parts first come up."""
    found: dict[bytes, Part] = {}
    part_of: dict[bytes, Part] = {}  # of keys that are in a line already
    asked = dict.fromkeys(keys)
    for key in asked:
        if key in part_of:
            continue
        line = _up(peek, key, part_of)
        if not line:
            continue
        top = line[0]
        part = part_of.get(top.parent)
        if part is None:
            first = top.parent or top.key
            part = found.setdefault(first, Part(top.tenant, top.owner, first))
        part.line += [slot.key for slot in line]
        part_of |= {slot.key: part for slot in line}
        mine = [slot for slot in line if slot.key in asked]
        if not part.keys:
            part.tip = mine[0].parent
        part.keys += [slot.key for slot in mine]
    return list(found.values())


def _up(peek: Peek, key: bytes, known: dict[bytes, Part]) -> list[Slot]:
    """The held blocks from one that is not in a line yet down to this one.

    What stands before a block is as its writer said: it may be the block itself.
    """
    line: dict[bytes, Slot] = {}
    while key and key not in known and key not in line and (slot := peek(key)) is not None:
        line[key] = slot
        key = slot.parent
    return list(line.values())[::-1]
