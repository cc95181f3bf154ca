"""What looking at slots costs: a caller may name one thousands of times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvstore.core.lifecycle import Slot
from kvstore.memory.heads import Heads
from kvstore.node.moves import Moves
from kvstore.node.readers import Opened
from kvstore.transfer.frames import Found
from tests.node.rig import SMALL, TOKENS, Rig, prompt

MANY = 20
WHOLE = SMALL.layout.whole
SAID = [(Found.SEALED, WHOLE.layers)] * MANY


@pytest.mark.parametrize("pins", ["one", "of one call", "of several calls"])
def test_a_slot_that_is_named_many_times_is_looked_at_once(
    pins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, looked = Rig(), list[Slot]()
    session, blocks = rig.session(), prompt(SMALL, TOKENS)
    rig.put(session, SMALL, blocks)
    opened = rig.store.open(session, SMALL, blocks.hashes * MANY)
    handles = [one.handle for one in opened if isinstance(one, Opened)]
    named = {"one": handles[:1] * MANY, "of one call": handles, "of several calls": handles[::-1]}
    right = Heads.layers_written

    def counted(self: Heads, slots: Sequence[Slot], *of: Any) -> list[int]:
        looked.extend(slots)
        return right(self, slots, *of)

    monkeypatch.setattr(Heads, "layers_written", counted)
    moves = Moves(rig.store, lambda owner: SMALL.layout)
    assert moves.look(session, named[pins], WHOLE) == SAID
    assert len(looked) == 1
    gone = moves.look(session, [b"nobody's", *named[pins]], WHOLE)
    assert gone == [(Found.GONE, 0), *SAID]
