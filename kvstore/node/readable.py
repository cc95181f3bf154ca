"""What readers can read of the blocks that they name: by key what is sealed and in their reach, by
hand-off or writer group what is still being filled.

Decisions only: nothing is pinned or counted here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvstore.block import Miss
from kvstore.core.forgone import Forgone
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.windows import Windows
from kvstore.node.blocks import Blocks
from kvstore.node.claims import Claims
from kvstore.node.sessions import Session

# Whoever writes or wrote it: it may be had a moment later.
_THERE = (Miss.UNSEALED, Miss.NO_ROOM, Miss.LATE, Miss.UNREACHABLE)


class Readable:
    """Of one store's blocks."""

    def __init__(self, blocks: Blocks, claims: Claims, windows: Windows, forgone: Forgone) -> None:
        self._blocks, self._claims = blocks, claims
        self._windows, self._forgone = windows, forgone

    def sealed(self, keys: Sequence[bytes], reach: Tier) -> list[Slot | Miss]:
        """`reach`: the highest tier that a reader can read from."""
        near = (Tier.DRAM, reach)
        return [
            slot if slot is not None and slot.tier in near else self._in_reach(key, near)
            for key, slot in zip(keys, self._blocks.index.get_all(keys), strict=True)
        ]

    def named(
        self,
        session: Session,
        keys: Sequence[bytes],
        hand_offs: Sequence[bytes],
        writer_group: str,
        reach: Tier,
    ) -> list[Slot | Miss]:
        """The same, and what is being filled."""
        found = self.sealed(keys, reach)
        for i, hand_off in enumerate(hand_offs):
            slot = (
                self._claims.handed_off(session, hand_off, f"hand_offs[{i}]") if hand_off else None
            )
            if slot is not None and slot.key == keys[i]:
                found[i] = slot
        if writer_group:
            over, holes = self._forgone.holds(session.tenant, writer_group), dict[bytes, bytes]()
            for i, (key, one) in enumerate(zip(keys, found, strict=True)):
                if isinstance(one, Slot):
                    continue
                filling = self._windows.slot_of((session.tenant, writer_group, key))
                if filling is not None:
                    found[i] = filling
                elif over and not self._may_come(key, one, holes):
                    found[i] = Miss.FORGONE
        return found

    def _may_come(self, key: bytes, why: Miss, holes: dict[bytes, bytes]) -> bool:
        """Whether a block that nobody can read now may be had a moment later: one that is here
        behind a hole, if somebody fills that. `holes` is what was found of others of the call. What
        stands before a block is as its writer said: in a circle nothing is ever listed."""
        if why is not Miss.UNLISTED:
            return why in _THERE
        passed, at = dict[bytes, None](), key
        while at not in holes and at not in passed:
            passed[at] = None
            slot = self._blocks.index.peek(at)
            at = slot.parent if slot is not None and slot.parent else at
        hole = holes.get(at, at)
        holes.update(dict.fromkeys(passed, hole))
        return hole in self._blocks.filling

    def _in_reach(self, key: bytes, near: Collection[Tier]) -> Slot | Miss:
        """A block that was not brought where its reader can read it, in time, is none."""
        found = self._blocks.find(key)
        if not isinstance(found, Slot) or found.tier in near:
            return found
        return Miss.LATE if found.moves else Miss.NO_ROOM  # it is on its way, or was never taken
