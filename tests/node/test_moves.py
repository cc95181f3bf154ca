"""What the owner moves: whose handle it takes, for what, and what it holds meanwhile."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvstore.core.lifecycle import Slot, State
from kvstore.errors import SessionEnded, WindowClosed
from kvstore.layout import Fragment
from kvstore.limits import PIN_MS_DEFAULT, REMOTE_WINDOW_SECONDS
from kvstore.memory.heads import Heads
from kvstore.node.claims import Claims
from kvstore.node.handles import Claim, Direction
from kvstore.node.moves import Held, Moves
from kvstore.node.readers import Opened
from kvstore.node.sessions import Session
from kvstore.transfer.frames import Found, Status
from tests.node.rig import SMALL, TOKENS, Rig, prompt, triples

WHOLE = SMALL.layout.whole


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def moves(rig: Rig) -> Moves:
    return Moves(rig.store, lambda owner: SMALL.layout)


@pytest.fixture
def session(rig: Rig) -> Session:
    return rig.session()


def sealed(rig: Rig, session: Session, start: int = 0) -> tuple[Slot, bytes]:
    """A sealed block, and the handle of a pin on it."""
    blocks = prompt(SMALL, TOKENS, start)
    rig.put(session, SMALL, blocks)
    opened = rig.pinned(session, blocks.hashes[0])
    return opened.slot, opened.handle


def window(rig: Rig, session: Session, start: int = 0) -> tuple[Slot, bytes]:
    one = rig.reserve(session, SMALL, prompt(SMALL, TOKENS, start))[0]
    return one.slot, one.handle


def test_a_block_is_held_while_it_is_read_whatever_becomes_of_its_pin(
    rig: Rig, moves: Moves, session: Session
) -> None:
    slot, handle = sealed(rig, session)
    (held,) = moves.reading(session, [handle], WHOLE)
    assert isinstance(held, Held)
    rig.store.readers.close(session, [handle])
    assert (
        len(rig.store.remove(rig.store.keys("default", SMALL, prompt(SMALL, TOKENS).hashes))) == 1
    )
    rig.end(session)
    assert slot.state is State.DOOMED, "its memory is nobody else's yet"
    rig.store.check()
    moves.let_go([held])
    assert slot.state is State.EMPTY
    rig.store.check()


def test_a_window_is_held_while_it_is_written_whatever_becomes_of_its_session(
    rig: Rig, moves: Moves, session: Session
) -> None:
    slot, handle = window(rig, session)
    (held,) = moves.writing(session, [handle], WHOLE)
    rig.end(session)
    assert slot.state is State.DOOMED
    rig.store.check()
    moves.let_go([held])
    assert slot.state is State.EMPTY
    rig.store.check()


def test_a_handle_serves_its_own_session_only(rig: Rig, moves: Moves, session: Session) -> None:
    _, pin = sealed(rig, session)
    _, open_ = window(rig, session, 100)
    for other in (rig.session(), rig.session("other")):
        assert moves.reading(other, [pin], WHOLE) == [Status.REFUSED]
        assert moves.writing(other, [open_], WHOLE) == [Status.REFUSED]
        assert moves.look(other, [pin], WHOLE) == [(Found.GONE, 0)]


def test_a_handle_serves_its_own_direction_only(rig: Rig, moves: Moves, session: Session) -> None:
    _, pin = sealed(rig, session)
    _, open_ = window(rig, session, 100)
    assert moves.reading(session, [open_], WHOLE) == [Status.REFUSED]
    assert moves.writing(session, [pin], WHOLE) == [Status.REFUSED]


def test_a_closed_and_an_expired_pin_move_nothing(rig: Rig, moves: Moves, session: Session) -> None:
    _, closed = sealed(rig, session)
    _, late = sealed(rig, session, 100)
    rig.store.readers.close(session, [closed])
    rig.pass_time(PIN_MS_DEFAULT / 1e3 + 0.001)  # nobody has looked it over yet
    assert moves.reading(session, [closed, late], WHOLE) == [Status.LAPSED] * 2
    assert moves.look(session, [closed, late], WHOLE) == [(Found.GONE, 0)] * 2


@pytest.mark.parametrize(
    "part",
    [
        Fragment(0, 3, 0, 2),
        Fragment(2, 1, 0, 1),
        Fragment(0, 0, 0, 1),
        Fragment(0, 1, 1, 2),
        Fragment(0, 1, 0, 0),
        Fragment(0, 2**32 - 1, 0, 2**32 - 1),
        Fragment(2**32 - 1, 2, 0, 1),
    ],
)
def test_a_fragment_outside_the_block_moves_nothing(
    rig: Rig, moves: Moves, session: Session, part: Fragment
) -> None:
    _, pin = sealed(rig, session)
    _, open_ = window(rig, session, 100)
    before = rig.all_there_is()
    assert moves.reading(session, [pin], part) == [Status.OUT_OF_RANGE]
    assert moves.writing(session, [open_], part) == [Status.OUT_OF_RANGE]
    assert moves.look(session, [pin], part) == [(Found.GONE, 0)]
    assert rig.all_there_is() == before


def test_a_writer_stays_within_its_own_window(rig: Rig, moves: Moves, session: Session) -> None:
    mine = Fragment(0, 2, 0, 1)
    chain = triples(prompt(SMALL, TOKENS))
    (one,) = rig.store.reserve(session, SMALL, chain, mine, "group")
    assert one is not None
    for part in (WHOLE, Fragment(0, 1, 1, 1), Fragment(1, 1, 0, 2)):
        assert moves.writing(session, [one.handle], part) == [Status.OUT_OF_RANGE]
    held = moves.writing(session, [one.handle], mine)
    assert isinstance(held[0], Held)
    moves.let_go(held)


def test_a_strip_is_written_once_and_by_one_at_a_time(
    rig: Rig, moves: Moves, session: Session
) -> None:
    slot, handle = window(rig, session)
    first = moves.writing(session, [handle, handle], WHOLE)
    assert first[1] is Status.WRITTEN, "the first of the two is under way"
    moves.let_go(first)
    again = moves.writing(session, [handle], Fragment(0, 1, 0, 1))
    assert isinstance(again[0], Held), "nothing came the first time"
    moves.let_go(again)
    rig.write(slot, SMALL, Fragment(0, 1, 0, 1))
    assert moves.writing(session, [handle], WHOLE) == [Status.WRITTEN]


def test_what_is_not_written_is_not_read(rig: Rig, moves: Moves, session: Session) -> None:
    slot, _ = window(rig, session)
    pin = rig.store.pins.pin(slot, session.serial, rig.clock.now() + 10)
    handle = rig.store.claims.for_pins(session, pin.serial, 1, pin.expires)[0]
    rig.write(slot, SMALL, Fragment(0, 1, 0, 2))
    assert moves.reading(session, [handle], WHOLE) == [Status.UNWRITTEN]
    assert moves.look(session, [handle], WHOLE) == [(Found.FILLING, 1)]
    held = moves.reading(session, [handle], Fragment(0, 1, 0, 2))
    assert isinstance(held[0], Held)
    moves.let_go(held)


def test_a_mistake_in_the_middle_of_a_call_holds_nothing(rig: Rig, session: Session) -> None:
    slot, handle = sealed(rig, session)
    asked: list[int] = []

    def layout_of(_: object) -> object:
        asked.append(1)
        if len(asked) == 2:
            raise KeyError("a mistake of ours")
        return SMALL.layout

    with pytest.raises(KeyError):
        Moves(rig.store, layout_of).reading(session, [handle, handle], WHOLE)  # type: ignore[arg-type]
    assert slot.moves == 0


def test_a_thousand_mutations_of_real_handles_move_nothing(
    rig: Rig, moves: Moves, session: Session
) -> None:
    dice = random.Random(25)
    _, pin = sealed(rig, session)
    _, open_ = window(rig, session, 100)
    before = rig.all_there_is()
    for number in range(1_000):
        real = dice.choice([pin, open_])
        forged = bytearray(real)
        for _ in range(dice.choice([1, 1, 1, 2, 8])):
            forged[dice.randrange(len(forged))] ^= 1 << dice.randrange(8)
        cut = bytes(forged[: dice.choice([len(forged), len(forged), dice.randrange(80)])])
        if cut in (pin, open_):
            continue
        seen = [
            *moves.reading(session, [cut], WHOLE),
            *moves.writing(session, [cut], WHOLE),
            moves.look(session, [cut], WHOLE)[0][0],
        ]
        assert seen == [Status.REFUSED, Status.REFUSED, Found.GONE], (number, cut.hex())
    assert rig.all_there_is() == before


# Writers that stand still


def test_looking_for_them_leaves_what_one_call_opened_together() -> None:
    rig = Rig()
    here, far = rig.session(mapped=True), rig.session()
    first = rig.reserve(here, SMALL, prompt(SMALL, 12))
    then = rig.reserve(far, SMALL, prompt(SMALL, 8, start=500))
    rig.pass_time(REMOTE_WINDOW_SECONDS - 1.0)
    rig.store.expire()
    for session, windows in ((here, first), (far, then)):
        handles = [one.handle for one in windows]
        assert rig.store.claims.whole_run(session, handles) is not None


def test_windows_of_a_remote_session_that_stands_still_end(rig: Rig, session: Session) -> None:
    slot, handle = window(rig, session)
    rig.pass_time(REMOTE_WINDOW_SECONDS - 1)
    rig.store.expire()
    assert slot.state is State.FILLING
    rig.pass_time(1)
    rig.store.expire()
    assert slot.state is State.EMPTY and len(rig.store.windows) == 0
    assert rig.counters.totals()["expired_windows"] == 1
    with pytest.raises(WindowClosed, match="stood still for too long"):
        rig.store.seal(session, [handle])
    rig.store.check()


def test_bytes_that_come_in_keep_a_session_s_windows(
    rig: Rig, moves: Moves, session: Session
) -> None:
    first, handle = window(rig, session)
    second, _ = window(rig, session, 100)
    rig.pass_time(REMOTE_WINDOW_SECONDS - 1)
    moves.let_go(moves.writing(session, [handle], WHOLE), session)
    rig.pass_time(REMOTE_WINDOW_SECONDS - 1)
    rig.store.expire()
    assert first.state is second.state is State.FILLING
    rig.pass_time(1)
    rig.store.expire()
    assert first.state is second.state is State.EMPTY


def test_what_is_being_moved_in_is_not_given_up(rig: Rig, moves: Moves, session: Session) -> None:
    slot, handle = window(rig, session)
    held = moves.writing(session, [handle], WHOLE)
    rig.pass_time(2 * REMOTE_WINDOW_SECONDS)
    rig.store.expire()
    assert slot.state is State.FILLING
    moves.let_go(held, session)
    rig.store.expire()
    assert slot.state is State.FILLING, "its last byte has just come"


def test_a_mapped_window_never_ends_by_time(rig: Rig) -> None:
    mapped = rig.session(mapped=True)
    slot, _ = window(rig, mapped)
    for _ in range(5):
        rig.pass_time(10 * REMOTE_WINDOW_SECONDS)
        rig.store.expire()
    assert slot.state is State.FILLING
    rig.store.check()


def test_a_session_whose_windows_ended_by_time_may_map_no_memory(
    rig: Rig, session: Session
) -> None:
    """It still knows where they were."""
    window(rig, session)
    assert rig.sessions.by_shm_token(session.shm_token) is session
    rig.pass_time(REMOTE_WINDOW_SECONDS)
    rig.store.expire()
    assert rig.sessions.by_shm_token(session.shm_token) is None
    with pytest.raises(SessionEnded):
        rig.sessions.find(b"nobody", "default")


# A run: handles that one call gave out


def test_in_a_run_each_block_has_an_answer_of_its_own(
    rig: Rig, moves: Moves, session: Session
) -> None:
    blocks = prompt(SMALL, 4 * TOKENS)
    rig.put(session, SMALL, blocks)
    opened = rig.store.open(session, SMALL, blocks.hashes)
    pins = [one.handle for one in opened if isinstance(one, Opened)]
    whole = moves.reading(session, pins, WHOLE)
    assert [kind(one) for one in whole] == ["held"] * 4
    assert [one.slot.moves for one in whole if isinstance(one, Held)] == [1] * 4
    moves.let_go(whole)
    rig.store.readers.close(session, pins[1:2])
    held = moves.reading(session, pins, WHOLE)
    assert [kind(one) for one in held] == ["held", Status.LAPSED, "held", "held"]
    moves.let_go(held)
    rig.pass_time(PIN_MS_DEFAULT / 1e3 + 0.001)
    assert moves.reading(session, pins[2:], WHOLE) == [Status.LAPSED] * 2
    assert moves.reading(rig.session(), pins[2:], WHOLE) == [Status.REFUSED] * 2
    rig.store.check()


def test_in_a_run_of_windows_each_strip_is_written_once_all_the_same(
    rig: Rig, moves: Moves, session: Session
) -> None:
    windows = rig.reserve(session, SMALL, prompt(SMALL, 4 * TOKENS))
    handles = [one.handle for one in windows]
    rig.write(windows[1].slot, SMALL, Fragment(1, 1, 0, 1))
    held = moves.writing(session, handles, WHOLE)
    assert [kind(one) for one in held] == ["held", Status.WRITTEN, "held", "held"]
    assert moves.writing(session, handles, WHOLE) == [Status.WRITTEN] * 4, "they are being written"
    moves.let_go(held, session)
    part = Fragment(0, 1, 0, 2)
    held = moves.writing(session, handles, part)
    assert [kind(one) for one in held] == ["held"] * 4
    assert moves.writing(session, handles, part) == [Status.WRITTEN] * 4
    moves.let_go(held, session)
    rig.store.abort(session, handles[2:3])
    held = moves.writing(session, handles, part)
    assert [kind(one) for one in held] == ["held", "held", Status.LAPSED, "held"]
    moves.let_go(held, session)
    assert moves.writing(session, handles, Fragment(0, 3, 0, 1)) == [
        *[Status.OUT_OF_RANGE] * 2, Status.LAPSED, Status.OUT_OF_RANGE,
    ]  # fmt: skip
    assert moves.writing(rig.session(), handles, part) == [Status.REFUSED] * 4
    rig.store.check()


def kind(one: Held | Status) -> Any:
    return "held" if isinstance(one, Held) else one


# Tests of the tests: each of these mechanisms broken on purpose is caught by what stands above.


@pytest.mark.parametrize("way", ["reading", "writing"])
def test_these_tests_catch_an_owner_that_does_not_hold_what_it_moves(
    rig: Rig, moves: Moves, session: Session, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(Moves, way)

    def holds_nothing(self: Moves, *given: Any) -> Any:
        held = right(self, *given)
        for one in held:
            one.slot.moves -= 1
        return held

    monkeypatch.setattr(Moves, way, holds_nothing)
    with pytest.raises(AssertionError):
        if way == "reading":
            test_a_block_is_held_while_it_is_read_whatever_becomes_of_its_pin(rig, moves, session)
        else:
            test_a_window_is_held_while_it_is_written_whatever_becomes_of_its_session(
                rig, moves, session
            )


def test_these_tests_catch_an_owner_that_takes_anybodys_handle(
    rig: Rig, moves: Moves, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def anybodys(
        self: Claims, _: Session, handle: bytes, direction: Direction, where: str
    ) -> Claim:
        return self._handles.open(handle, direction, where)

    monkeypatch.setattr(Claims, "_own", anybodys)
    with pytest.raises(AssertionError):
        test_a_handle_serves_its_own_session_only(rig, moves, session)


@pytest.mark.parametrize("check", ["live", "unwritten"])
def test_these_tests_catch_an_owner_that_looks_at_a_run_as_a_whole_only(
    rig: Rig, moves: Moves, session: Session, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def every_pin(self: Claims, _: Session, handles: Any) -> Any:
        first = self._handles.open_run(handles, Direction.READ)
        return first and [self._pins.get(first.serial)] * len(handles)

    if check == "live":
        monkeypatch.setattr(Claims, "run_of_pins", every_pin)
    else:
        monkeypatch.setattr(Heads, "none_written", lambda *_: True)
    with pytest.raises(AssertionError):
        if check == "live":
            test_in_a_run_each_block_has_an_answer_of_its_own(rig, moves, session)
        else:
            test_in_a_run_of_windows_each_strip_is_written_once_all_the_same(rig, moves, session)
