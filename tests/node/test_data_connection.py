"""What one data connection holds while it answers a call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvstore.core.lifecycle import Slot, State
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import MiB
from kvstore.memory.arena import Arena
from kvstore.memory.strips import strip_hash
from kvstore.node import data_connection
from kvstore.node.data_connection import DataConnection
from kvstore.node.moves import Held
from kvstore.transfer.frames import Status

LAYOUT = SlotLayout(layers=2, kv_heads=1, block_tokens=4, parts=1, run_bytes=8)
WHOLE = LAYOUT.whole
STRIP = bytes(LAYOUT.strip_stride)  # of each, as memory is that nobody has written to
ENTRY = struct.pack("<Q", strip_hash(memoryview(STRIP)))


class Caller:
    """Its tables, and its memory, of which it is seen when the node takes some."""

    def __init__(self) -> None:
        self.said, self.seen = list[bytes](), list[tuple[str, int]]()

    def send(self, said: bytes) -> None:
        self.said.append(said)

    def receive_into(self, buffers: Iterable[memoryview]) -> None:
        rows = list(buffers)
        for row in rows:
            row[:] = ENTRY * LAYOUT.strips
        self.seen.append(("tables", len(rows)))

    def places(self, count: int, region: int) -> list[int]:
        return [LAYOUT.place_bytes * i for i in range(count)]

    def fitting(
        self, held: Sequence[Held | Status], places: Sequence[int], region: int
    ) -> list[Held | Status]:
        return [*held[:3], Status.OUT_OF_RANGE, *held[4:]]

    def read(self, held: Sequence[Held | Status], places: Sequence[int], region: int) -> None:
        assert len(held) == len(places)
        self.seen.append(("strips", sum(isinstance(one, Held) for one in held)))


def test_tables_of_blocks_that_are_pushed_are_taken_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of very small strips they are more than the strips are, and beside the arena."""
    monkeypatch.setattr(data_connection, "_TABLES_BYTES", 3 * LAYOUT.root_bytes)
    arena, caller, over = Arena.create(MiB), Caller(), list[Any]()
    slots = [Slot(i, i * LAYOUT.slot_bytes, (b"", 0), State.FILLING, tokens=4) for i in range(8)]
    held = [Held(slot, LAYOUT, WHOLE) for slot in slots]

    def at_once(what: Callable[..., None], *arguments: Any) -> None:
        what(*arguments)

    def writing(session: Any, handles: Sequence[bytes], fragment: Fragment) -> list[Held]:
        return held

    parts: Any = {
        "loop": SimpleNamespace(call_soon_threadsafe=at_once),
        "moves": SimpleNamespace(writing=writing, let_go=lambda *of: over.append(of)),
        "counters": SimpleNamespace(add=lambda *_: None),
    }
    call = DataConnection(
        stream=cast(Any, caller), session=cast(Any, None), arena=arena,
        ucx=cast(Any, caller), orders=cast(Any, None), **parts,
    )  # fmt: skip
    call._push([b"handle"] * 8, WHOLE, 0)
    assert caller.seen == [(what, count) for count in (3, 3, 1) for what in ("tables", "strips")]
    taken = bytes([*[Status.MOVED] * 3, Status.OUT_OF_RANGE, *[Status.MOVED] * 4])
    assert caller.said == [taken, taken], "what may come, and what has"
    assert over == [(held, None)]
