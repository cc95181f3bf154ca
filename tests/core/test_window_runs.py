"""What one call opened on whole blocks is one run, and behaves as its windows one by one would."""

from __future__ import annotations

import random

import pytest

from kvstore.core.lifecycle import Slot, State
from kvstore.core.windows import Run, Window, Windows
from tests.core.test_windows import GROUP, LAYOUT, LEFT, filling

WHOLE = LAYOUT.whole


def opened(windows: Windows, count: int, session: int = 1) -> tuple[int, list[Slot]]:
    slots = [filling() for _ in range(count)]
    return windows.open_all(slots, session, WHOLE, LAYOUT), slots


def test_a_run_is_sealed_at_once_and_leaves_nothing() -> None:
    windows = Windows()
    first, slots = opened(windows, 3)
    second, others = opened(windows, 2)
    windows.check()
    run = windows.run(first, 3)
    assert (
        run is not None
        and run.slots == slots
        and list(run.serials) == [first, first + 1, first + 2]
    )
    assert len(windows) == windows.writing == 5 and all(map(windows.reserved, slots + others))
    windows.seal_run(run)
    assert windows.run(first, 3) is None and windows.get(first + 1) is None
    assert not any(slot.held or windows.reserved(slot) for slot in slots)
    assert len(windows) == 2 and windows.get(second) is not None


def test_only_all_that_one_call_opened_is_a_run() -> None:
    windows = Windows()
    first, _ = opened(windows, 3)
    opened(windows, 3)
    for serial, count in ((first, 2), (first, 4), (first, 6), (first + 1, 2), (0, 3), (99, 3)):
        assert windows.run(serial, count) is None
    part = windows.open_all([filling()], 1, LEFT, LAYOUT)
    shared = windows.open_all([filling()], 1, WHOLE, LAYOUT, [GROUP])
    assert windows.run(part, 1) is windows.run(shared, 1) is None
    windows.check()


def test_a_window_that_is_asked_for_by_itself_is_the_same_ever_after_and_so_are_its_kin() -> None:
    windows = Windows()
    first, slots = opened(windows, 3, session=7)
    window = windows.get(first + 1)
    assert window is not None and window.slot is slots[1] and window.fragment == WHOLE
    assert windows.get(first + 1) is window and windows.run(first, 3) is None
    windows.check()
    assert [one.serial for one in windows.of_session(7)] == [first, first + 1, first + 2]
    windows.give_up(window)
    slots[1].move(State.DOOMED)
    windows.close(window)
    left = windows.of_session(7)
    assert windows.seal_all(left, 0.0) == [True, True] and len(windows) == 0
    windows.check()


@pytest.mark.parametrize("seed", range(4))
def test_runs_and_single_windows_live_beside_each_other(seed: int) -> None:
    dice, windows = random.Random(seed), Windows()
    live: dict[int, tuple[Slot, int]] = {}  # by serial: what is written there, and by whom
    runs: dict[int, int] = {}  # of which nobody has asked for one by itself: how many they are
    ended = {"sealed as a run": 0, "sealed by itself": 0, "given up": 0}

    def parted(serial: int) -> None:
        for first, count in [*runs.items()]:
            if first <= serial < first + count:
                del runs[first]

    def window_of(serial: int) -> Window:
        parted(serial)
        window = windows.get(serial)
        assert window is not None and window.slot is live[serial][0]
        return window

    def run_of(first: int, count: int) -> Run:
        run = windows.run(first, count)
        assert run is not None
        return run

    for _ in range(600):
        deed = dice.random()
        if deed < 0.4:
            session = dice.randrange(3)
            first, slots = opened(windows, dice.randrange(1, 5), session)
            live |= {first + i: (slot, session) for i, slot in enumerate(slots)}
            runs[first] = len(slots)
        elif deed < 0.6 and runs:
            first = dice.choice([*runs])
            run = run_of(first, runs.pop(first))
            windows.seal_run(run)
            assert all(live.pop(serial)[0].windows == 0 for serial in run.serials)
            ended["sealed as a run"] += 1
        elif deed < 0.75 and live:
            serial = dice.choice([*live])
            assert windows.seal(window_of(serial), 0.0)
            live.pop(serial)[0].move(State.SEALED)
            ended["sealed by itself"] += 1
        elif deed < 0.85 and live:
            serial = dice.choice([*live])
            window = window_of(serial)
            windows.give_up(window)
            live.pop(serial)[0].move(State.DOOMED)
            windows.close(window)
            ended["given up"] += 1
        elif deed < 0.9:
            session = dice.randrange(3)
            ours = [serial for serial, (_, whose) in live.items() if whose == session]
            assert sorted(one.serial for one in windows.of_session(session)) == sorted(ours)
            for serial in ours:
                parted(serial)
        assert len(windows) == windows.writing == len(live)
        assert all(slot.windows == 1 and windows.reserved(slot) for slot, _ in live.values())
        for first, count in runs.items():
            run_of(first, count)
        windows.check()
    assert min(ended.values()) > 20, ended
