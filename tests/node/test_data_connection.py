"""What one data connection holds while it answers a call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvstore.core.lifecycle import Slot, State
from kvstore.errors import Unavailable
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import MiB
from kvstore.memory.arena import Arena
from kvstore.memory.strips import strip_hash
from kvstore.node import data_connection
from kvstore.node.data_connection import DataConnection
from kvstore.node.moves import Held
from kvstore.transfer.frames import LOOKED, Found, Status

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

    def send_all(self, pieces: Iterable[bytes]) -> int:
        self.said += pieces
        return 0

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


def connection(caller: Caller, **moves: Any) -> DataConnection:
    """Of a node that answers at once by these."""

    def at_once(what: Callable[..., None], *arguments: Any) -> None:
        what(*arguments)

    parts: Any = {
        "loop": SimpleNamespace(call_soon_threadsafe=at_once),
        "moves": SimpleNamespace(**moves),
        "counters": SimpleNamespace(add=lambda *_: None),
    }
    return DataConnection(
        stream=cast(Any, caller), session=cast(Any, None), arena=Arena.create(MiB),
        ucx=cast(Any, caller), orders=cast(Any, None), **parts,
    )  # fmt: skip


def test_tables_of_blocks_that_are_pushed_are_taken_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of very small strips they are more than the strips are, and beside the arena."""
    monkeypatch.setattr(data_connection, "_TABLES_BYTES", 3 * LAYOUT.root_bytes)
    caller, over = Caller(), list[Any]()
    slots = [Slot(i, i * LAYOUT.slot_bytes, (b"", 0), State.FILLING, tokens=4) for i in range(8)]
    held = [Held(slot, LAYOUT, WHOLE) for slot in slots]

    def writing(session: Any, handles: Sequence[bytes], fragment: Fragment) -> list[Held]:
        return held

    call = connection(caller, writing=writing, let_go=lambda *of: over.append(of))
    call._push([b"handle"] * 8, WHOLE, 0)
    assert caller.seen == [(what, count) for count in (3, 3, 1) for what in ("tables", "strips")]
    taken = bytes([*[Status.MOVED] * 3, Status.OUT_OF_RANGE, *[Status.MOVED] * 4])
    assert caller.said == [taken, taken], "what may come, and what has"
    assert over == [(held, None)]


# The node's loop serves everybody, and a call may have many strips looked at.


@pytest.mark.parametrize("way", ["look", "read", "write"])
@pytest.mark.parametrize(
    ("fragment", "turns"),
    [(Fragment(0, 64, 0, 8), [32, 8]), (Fragment(0, 4096, 0, 16), [1] * 40), (WHOLE, [40])],
)
def test_the_loop_has_turns_for_others_while_it_is_asked_about_many_strips(
    way: str, fragment: Fragment, turns: list[int]
) -> None:
    asked: list[list[bytes]] = []

    def refused(session: Any, handles: list[bytes], fragment: Fragment) -> list[Status]:
        asked.append(handles)
        return [Status.REFUSED] * len(handles)

    def gone(*of: Any) -> list[tuple[Found, int]]:
        return [(Found.GONE, 0) for _ in refused(*of)]

    caller, handles = Caller(), [b"%d" % i for i in range(40)]
    ways = {"look": gone, "reading": refused, "writing": refused, "let_go": lambda *_: None}
    getattr(connection(caller, **ways), f"_{way}")(handles, fragment)
    assert [len(some) for some in asked] == turns
    assert [one for some in asked for one in some] == handles
    answer = {
        "look": LOOKED.pack(Found.GONE, 0) * 40,
        "read": bytes([Status.REFUSED] * 40),
        "write": bytes([Status.REFUSED] * 40) * 2,  # before the bytes, and after
    }
    assert b"".join(caller.said) == answer[way]


def test_what_the_first_turns_hold_is_let_go_of_when_a_later_one_fails() -> None:
    let_go: list[Any] = []

    def writing(session: Any, handles: list[bytes], fragment: Fragment) -> list[Any]:
        if handles == [b"third"]:
            raise Unavailable("the node is stopping")
        return [b"held " + one for one in handles]

    call = connection(Caller(), writing=writing, let_go=let_go.append)
    with pytest.raises(Unavailable):
        call._write([b"first", b"second", b"third"], Fragment(0, 4096, 0, 16))
    assert let_go == [[b"held first", b"held second"]]
