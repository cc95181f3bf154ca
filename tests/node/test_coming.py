"""What the owner takes off the wire: a strip counts once its bytes are what was said of it."""

from __future__ import annotations

import random
import threading
import tracemalloc

import numpy as np
import pytest

from kvstore.core.lifecycle import Slot
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import MiB
from kvstore.memory.arena import Arena
from kvstore.memory.strips import strip_hash
from kvstore.node.coming import Coming
from kvstore.node.moves import Held, Moves
from kvstore.node.namespaces import Place
from kvstore.node.sessions import Session
from kvstore.transfer import landing, socket_kernels
from kvstore.transfer.frames import Status
from kvstore.transfer.landing import Landing
from tests.node.rig import LARGE, SMALL, TOKENS, Rig, prompt
from tests.transfer.pairs import STILL_SECONDS, connected

WHOLE = SMALL.layout.whole
PART = Fragment(1, 1, 1, 1)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which strips are taken: all that is promised is promised of both."""
    socket_kernels.load()
    if request.param == "interpreted":
        monkeypatch.setattr(socket_kernels, "at_hand", lambda size: None)
    return str(request.param)


@pytest.fixture
def moves(rig: Rig) -> Moves:
    layouts = {place.owner: place.layout for place in (SMALL, LARGE)}
    return Moves(rig.store, layouts.__getitem__)


def windows(
    rig: Rig,
    moves: Moves,
    session: Session,
    tokens: int,
    part: Fragment = WHOLE,
    place: Place = SMALL,
) -> list[Held]:
    """A window for each block of a new prompt of so many tokens."""
    reserved = rig.reserve(session, place, prompt(place, tokens))
    held = moves.writing(session, [one.handle for one in reserved], part)
    return [one for one in held if isinstance(one, Held)]


def sent(held: Held, seed: int) -> bytearray:
    """A block as it comes: entries, then strips."""
    size = held.layout.strip_bytes(held.slot.tokens)
    count = held.fragment.layers * held.fragment.heads
    strips = [random.Random(seed * 1_000 + i).randbytes(size) for i in range(count)]
    entries = [strip_hash(memoryview(strip)).to_bytes(8, "little") for strip in strips]
    return bytearray(b"".join(entries + strips))


def settled(rig: Rig, held: list[Held], said: list[bytearray]) -> list[int]:
    """What becomes of blocks that come like this."""
    statuses: list[int] = []
    with connected(STILL_SECONDS) as (stream, peer):
        sender = threading.Thread(target=peer.sendall, args=(b"".join([*said, b"."]),))
        sender.start()
        for some in Coming.few(rig.arena, held):
            some.receive(stream)
            statuses += some.settle().tolist()
        assert stream.receive(1) == b".", "all of it had a place"
        sender.join()
    return statuses


def whole(rig: Rig, slot: Slot, part: Fragment = WHOLE) -> bool:
    return rig.blocks.heads.unwritten(slot, SMALL.layout, part) is None


@pytest.mark.parametrize("together", [1, 1 << 30])
@pytest.mark.parametrize("part", [WHOLE, PART])
def test_blocks_of_any_size_come_into_their_slots(
    rig: Rig, moves: Moves, together: int, part: Fragment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "_TOGETHER_BYTES", together)
    held = windows(rig, moves, rig.session(), 3 * TOKENS + 1, part)
    assert len(held) == 4 and held[-1].slot.tokens == 1
    said = [sent(one, seed) for seed, one in enumerate(held)]
    assert settled(rig, held, said) == [Status.MOVED] * 4
    for one, data in zip(held, said, strict=True):
        assert whole(rig, one.slot, part)
        strips = bytearray(b"".join(_pieces(rig, one)))
        assert strips == data[8 * part.layers * part.heads :]
    if part != WHOLE:
        assert not whole(rig, held[0].slot), "the other strips are still to come"
    assert sum(one.payload_bytes for one in Coming.few(rig.arena, held)) == sum(
        len(data) - 8 * part.layers * part.heads for data in said
    )


def test_as_many_come_at_a_time_as_a_cache_holds(
    rig: Rig, moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = windows(rig, moves, rig.session(), 4 * TOKENS)
    assert len(list(Coming.few(rig.arena, held))) == 1
    monkeypatch.setattr(landing, "_TOGETHER_BYTES", 2 * SMALL.layout.payload_bytes)
    assert len(list(Coming.few(rig.arena, held))) == 2


def test_blocks_of_two_namespaces_come_in_one_call(rig: Rig, moves: Moves) -> None:
    session, part = rig.session(), Fragment(1, 1, 0, 1)
    held = windows(rig, moves, session, 2 * TOKENS, part)
    held += windows(rig, moves, session, TOKENS, part, LARGE)
    said = [sent(one, seed) for seed, one in enumerate(held)]
    said[1][-1] ^= 1
    assert settled(rig, held, said) == [Status.MOVED, Status.DAMAGED, Status.MOVED]
    assert rig.blocks.heads.unwritten(held[2].slot, LARGE.layout, part) is None


def test_strips_are_there_before_their_entries_say_so(
    rig: Rig, moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = windows(rig, moves, rig.session(), TOKENS)
    said, seen = [sent(held[0], 0)], list[bytes]()

    def look() -> None:
        assert rig.blocks.heads.none_written([held[0].slot], SMALL.layout, WHOLE)
        seen.extend(bytes(piece) for piece in _pieces(rig, held[0]))

    monkeypatch.setattr("kvstore.node.coming.fence", look)
    assert settled(rig, held, said) == [Status.MOVED]
    assert b"".join(seen) == said[0][8 * WHOLE.strips :]


def _pieces(rig: Rig, held: Held) -> list[memoryview]:
    at = held.slot.offset + held.layout.head_bytes
    runs = held.layout.runs(held.slot.tokens, held.fragment)
    return [rig.arena.view[at + start : at + start + size] for start, size in runs]


def test_no_strip_counts_whose_bytes_are_not_what_was_said(rig: Rig, moves: Moves) -> None:
    _damage_is_found(rig, moves)


def _damage_is_found(rig: Rig, moves: Moves) -> None:
    for at in range(0, 8 * WHOLE.layers * WHOLE.heads + SMALL.layout.payload_bytes, 7):
        session = rig.session()
        held = windows(rig, moves, session, 3 * TOKENS)
        said = [sent(one, seed) for seed, one in enumerate(held)]
        said[1][at] ^= 0x20
        assert settled(rig, held, said) == [Status.MOVED, Status.DAMAGED, Status.MOVED], at
        assert rig.blocks.heads.written(held[1].slot, SMALL.layout, WHOLE) is None, "none counts"
        assert whole(rig, held[0].slot) and whole(rig, held[2].slot), "the others do"
        moves.let_go(held, session)
        rig.end(session)
        rig.store.check()


def test_these_tests_catch_an_owner_that_trusts_what_comes(
    rig: Rig, moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Landing, "proven", lambda self, rows, *_: np.ones(len(rows), dtype=bool))
    with pytest.raises(AssertionError):
        _damage_is_found(rig, moves)


def test_blocks_whose_tables_are_as_large_as_they_are_come_a_few_at_a_time_too() -> None:
    layout = SlotLayout(layers=64, kv_heads=64, block_tokens=1, parts=1, run_bytes=8)
    arena = Arena.create(400 * layout.slot_bytes)
    slots = [Slot(i, i * layout.slot_bytes, (bytes(32), 0), tokens=1) for i in range(400)]
    came = 0
    tracemalloc.start()
    try:
        for some in Coming.few(arena, [Held(slot, layout, layout.whole) for slot in slots]):
            came += len(some.settle())
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert came == len(slots) and most < 8 * MiB, "their tables have 13 MiB"
