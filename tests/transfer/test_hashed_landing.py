"""Blocks that are hashed on their way: by compiled code or the interpreter, the same bytes and the
same proof."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer import landing, socket_kernels
from kvstore.transfer.hashed_landing import HashedLanding
from kvstore.transfer.stream import DataStream
from tests.transfer.pairs import Pair

LAYOUT = SlotLayout(layers=3, kv_heads=4, block_tokens=8, parts=2, run_bytes=32)
PARTS = [LAYOUT.whole, Fragment(1, 2, 1, 2), Fragment(2, 1, 3, 1)]
BLOCKS = 6
TOKENS = np.array([8, 8, 3, 8, 1, 8], np.int32)
NO_ROOTS = np.zeros((BLOCKS, 16), np.uint8)


@pytest.fixture(params=["compiled", "interpreted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    socket_kernels.load()
    if request.param == "interpreted":
        monkeypatch.setattr(socket_kernels, "at_hand", lambda size: None)
        monkeypatch.setattr(landing, "_TOGETHER_BYTES", 2 * LAYOUT.payload_bytes)


def made(kind: type[HashedLanding], seed: int | None = None) -> Any:
    size = BLOCKS * LAYOUT.payload_bytes
    some = bytes(size) if seed is None else np.random.default_rng(seed).bytes(size)
    memory = np.frombuffer(bytearray(some), np.uint8)
    return kind(LAYOUT, memory, LAYOUT.payload_bytes * np.arange(BLOCKS), TOKENS)


def sent(stream: DataStream, rows: np.ndarray, part: Fragment) -> HashedLanding:
    source: HashedLanding = made(HashedLanding, seed=1)
    source.send(stream, rows, part)
    return source


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("rows", [np.arange(BLOCKS), np.array([5, 2, 4])], ids=str)
def test_what_is_sent_is_what_a_receiver_of_entries_and_strips_takes(
    pair: Pair, part: Fragment, rows: np.ndarray
) -> None:
    into, said = made(HashedLanding), np.zeros((BLOCKS, part.strips), np.uint64)
    into.leads = said.view(np.uint8)  # as an owner takes it: of what is written no identity comes
    source = sent(pair[0], rows, part)
    taken = DataStream(pair[1], 10.0)
    into.receive(taken, rows, part)
    for row in rows.tolist():
        for mine, its in zip(into.pieces(row, part), source.pieces(row, part), strict=True):
            assert mine == its
    assert (said[rows] == into.hashed(rows, part)).all()
    into.tables[np.ix_(rows, landing.rows_of(LAYOUT, part))] = said[rows]
    assert into.proven(rows, part, NO_ROOTS[rows]).all()


@pytest.mark.usefixtures("way")
def test_what_came_is_known_by_its_hash_and_what_came_damaged_is_not_good(pair: Pair) -> None:
    into, every, size = made(HashedLanding), np.arange(BLOCKS), LAYOUT.root_bytes
    source = made(HashedLanding, seed=2)
    source.hash(every, LAYOUT.whole)
    whole = [
        bytearray(source.runs[row].tobytes() + b"".join(source.pieces(row, LAYOUT.whole)))
        for row in range(BLOCKS)
    ]
    whole[1][size + 5] ^= 1
    whole[3][-1] ^= 1
    whole[4][size - 3] ^= 1  # in its table
    sender = threading.Thread(target=pair[1].sendall, args=(b"".join(whole),))
    sender.start()
    into.receive(pair[0], every, LAYOUT.whole)
    sender.join()
    good = into.proven(every, LAYOUT.whole, NO_ROOTS)
    assert good.tolist() == [True, False, True, False, False, True]


@pytest.mark.usefixtures("way")
def test_what_comes_again_counts_as_it_came_last(pair: Pair) -> None:
    into, one = made(HashedLanding), np.array([0])
    source = made(HashedLanding, seed=3)
    source.hash(one, LAYOUT.whole)
    right = bytearray(source.runs[0].tobytes() + b"".join(source.pieces(0, LAYOUT.whole)))
    wrong = right.copy()
    wrong[-1] ^= 1
    for come, good in ((right, True), (wrong, False), (right, True)):
        pair[1].sendall(come)
        into.receive(pair[0], one, LAYOUT.whole)
        assert into.proven(one, LAYOUT.whole, NO_ROOTS[:1]).all() == good


@pytest.mark.usefixtures("way")
def test_what_was_hashed_as_it_came_is_not_hashed_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, source = came(pair, np.arange(BLOCKS))
    monkeypatch.setattr(into, "hashed", lambda *_: pytest.fail("it is read once more"))
    assert into.proven(np.arange(BLOCKS), LAYOUT.whole, NO_ROOTS).all()
    assert (into.tables == source.tables).all()


@pytest.mark.usefixtures("way")
def test_of_blocks_of_which_some_did_not_come_over_a_socket_all_are_hashed(pair: Pair) -> None:
    into, source = came(pair, np.arange(3))
    into.memory[3 * LAYOUT.payload_bytes :] = source.memory[3 * LAYOUT.payload_bytes :]
    into.tables[3:5] = source.tables[3:5]  # of the last one it says that nothing is written
    good = into.proven(np.arange(BLOCKS), LAYOUT.whole, NO_ROOTS)
    assert good.tolist() == [True] * 5 + [False]


def came(pair: Pair, rows: np.ndarray) -> tuple[HashedLanding, HashedLanding]:
    """A landing that these blocks came into, and the one that they are from."""
    into, source = made(HashedLanding), made(HashedLanding, seed=5)
    source.hash(np.arange(BLOCKS), LAYOUT.whole)
    for row in rows.tolist():
        pair[1].sendall(source.runs[row].tobytes() + b"".join(source.pieces(row, LAYOUT.whole)))
    into.receive(pair[0], rows, LAYOUT.whole)
    return into, source


@pytest.mark.parametrize("way", ["interpreted"], indirect=True)
@pytest.mark.parametrize("step", ["receive", "send"])
def test_the_interpreter_hashes_a_few_blocks_at_a_time(
    pair: Pair, way: None, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are in the cache."""
    moved, inner = list[int](), getattr(landing.Landing, step)

    def counted(self: Any, stream: DataStream, rows: np.ndarray, part: Fragment) -> None:
        moved.append(len(rows))
        inner(self, stream, rows, part)

    monkeypatch.setattr(landing.Landing, step, counted)
    if step == "receive":
        came(pair, np.arange(BLOCKS))
    else:
        sent(pair[0], np.arange(BLOCKS), LAYOUT.whole)
    assert moved == [2, 2, 2]


def test_strips_that_did_not_come_over_a_socket_are_hashed_as_they_lie() -> None:
    one, every = made(HashedLanding, seed=4), np.arange(BLOCKS)
    one.hash(every, LAYOUT.whole)
    assert one.proven(every, LAYOUT.whole, NO_ROOTS).all()
    one.memory[2 * LAYOUT.payload_bytes] ^= 1
    assert one.proven(every, LAYOUT.whole, NO_ROOTS).tolist() == [True, True, False, *[True] * 3]
