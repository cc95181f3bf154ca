"""A block is whole when every member has sealed its part; memory is held while one may write."""

from __future__ import annotations

import itertools
import random

import pytest

from kvstore.core.lifecycle import Slot, State
from kvstore.core.windows import GroupKey, Window, Windows
from kvstore.errors import AlreadyWritten
from kvstore.layout import Fragment, SlotLayout

LAYOUT = SlotLayout(layers=2, kv_heads=4, block_tokens=1, parts=1, run_bytes=1)
GROUP: GroupKey = ("default", "tp2", b"k" * 32)
LEFT, RIGHT = Fragment(0, 2, 0, 2), Fragment(0, 2, 2, 2)
TURNS_RED = pytest.raises((AssertionError, pytest.fail.Exception, KeyError, ValueError))
numbers = itertools.count()


def filling() -> Slot:
    number = next(numbers)
    return Slot(number, 0, (b"", 0), State.FILLING, generation=number + 1)


def opened(windows: Windows, slot: Slot, fragment: Fragment, session: int = 1) -> Window:
    windows.check_free(GROUP, fragment)
    return windows.open(slot, session, fragment, LAYOUT, GROUP)


def strips(fragment: Fragment) -> set[tuple[int, int]]:
    return set(
        itertools.product(
            range(fragment.layer_first, fragment.layer_first + fragment.layers),
            range(fragment.head_first, fragment.head_first + fragment.heads),
        )
    )


def groups_behave_like_sets_of_strips(seed: int, steps: int = 1_500) -> None:
    dice = random.Random(seed)
    windows = Windows()
    groups: list[GroupKey] = [("t", name, key) for name in "gh" for key in (b"1", b"2")]
    live: dict[GroupKey, list[Window]] = {}  # blocks that can become whole
    dying: list[Window] = []  # of blocks given up, and whose member may still write
    whole = given_up = 0
    for _ in range(steps):
        action, group = dice.random(), dice.choice(groups)
        members = live.get(group, [])
        if action < 0.5:
            layers, heads = dice.choice([(0, 1), (1, 1), (0, 2)]), dice.choice([(0, 2), (2, 2)])
            fragment = Fragment(*layers, *heads)
            clash = any(strips(w.fragment) & strips(fragment) for w in members)
            try:
                windows.check_free(group, fragment)
                assert not clash
            except AlreadyWritten as error:
                assert clash and str(fragment) in str(error)
                continue
            slot = windows.slot_of(group) or filling()
            window = windows.open(slot, dice.randrange(3), fragment, LAYOUT, group)
            live.setdefault(group, []).append(window)
        elif action < 0.85 and (unsealed := [w for w in members if not w.sealed]):
            window = dice.choice(unsealed)
            done = windows.seal(window, 0.0)
            covered = set().union(*(strips(w.fragment) for w in members if w.sealed))
            assert done == (len(covered) == LAYOUT.strips), "whole too soon or too late"
            if done:
                assert window.slot.windows == 0
                window.slot.move(State.SEALED)
                del live[group]
                whole += 1
        elif action < 0.92 and members:
            windows.give_up(dice.choice(members))
            members[0].slot.move(State.DOOMED)
            dying += [w for w in members if not w.sealed]
            del live[group]
            given_up += 1
        elif dying:
            window = dying.pop(dice.randrange(len(dying)))
            windows.give_up(window)  # as a session's end does: it may be the second to
            windows.close(window)
        held = dying + [w for some in live.values() for w in some]
        assert len(windows) == len(held) and all(windows.get(w.serial) is w for w in held)
        for window in held:
            may_write = [w for w in held if w.slot is window.slot and not w.sealed]
            assert window.slot.windows == len(may_write)
            assert windows.reserved(window.slot) == (window not in dying)
        assert windows.writing == sum(not w.sealed for w in held)
        for session in range(3):
            ours = {w for w in held if w.session == session}
            assert set(windows.of_session(session)) == ours
        for group in groups:
            assert windows.slot_of(group) is (live[group][0].slot if group in live else None)
        windows.check()
    assert whole > 20 and given_up > 20


@pytest.mark.parametrize("seed", range(4))
def test_writer_groups_behave_like_sets_of_strips(seed: int) -> None:
    groups_behave_like_sets_of_strips(seed)


def test_the_last_member_to_seal_makes_the_block_whole() -> None:
    windows, slot = Windows(), filling()
    left, right = opened(windows, slot, LEFT), opened(windows, slot, RIGHT, session=2)
    assert not windows.seal(left, 0.0)
    assert windows.get(left.serial) is left, "the block must go down with this member's session"
    assert windows.seal(right, 0.0)
    assert len(windows) == 0 and slot.windows == 0 and windows.slot_of(GROUP) is None


def test_members_must_own_separate_fragments() -> None:
    windows, slot = Windows(), filling()
    opened(windows, slot, LEFT)
    for clash in (LEFT, Fragment(1, 1, 1, 2), LAYOUT.whole):
        with pytest.raises(
            AlreadyWritten, match=r"heads 0\.\.1, which a member of writer group 'tp2'"
        ):
            opened(windows, slot, clash)
    opened(windows, slot, RIGHT)
    windows.check_free(("default", "another", GROUP[2]), LEFT)
    windows.check_free(("default", "tp2", b"other key"), LEFT)
    windows.check_free(("another tenant", *GROUP[1:]), LEFT)


def test_one_member_dying_dooms_the_block_but_not_the_memory_of_the_others() -> None:
    windows, slot = Windows(), filling()
    left, right = opened(windows, slot, LEFT), opened(windows, slot, RIGHT, session=2)
    windows.give_up(left)
    slot.move(State.DOOMED)
    windows.close(left)
    windows.check()
    assert slot.held and windows.get(right.serial) is right, "the other may still write"
    assert not windows.reserved(slot)
    windows.close(right)
    assert not slot.held and len(windows) == 0


def test_a_member_that_sealed_its_part_does_not_hold_the_memory() -> None:
    windows, slot = Windows(), filling()
    left, right = opened(windows, slot, LEFT), opened(windows, slot, RIGHT, session=2)
    windows.seal(left, 0.0)
    assert slot.windows == 1
    windows.give_up(right)
    slot.move(State.DOOMED)
    assert windows.get(left.serial) is None
    windows.close(right)
    assert not slot.held


def test_a_group_may_begin_a_key_again_while_the_old_memory_is_still_held() -> None:
    windows, first = Windows(), filling()
    stopped = opened(windows, first, LAYOUT.whole)
    windows.give_up(stopped)
    first.move(State.DOOMED)
    assert windows.slot_of(GROUP) is None
    second = filling()
    again = opened(windows, second, LAYOUT.whole)
    windows.check()
    assert windows.slot_of(GROUP) is second and first.held
    windows.give_up(stopped)  # its session's end comes late, and must not touch the new block
    assert windows.slot_of(GROUP) is second
    windows.close(stopped)
    assert windows.seal(again, 0.0) and not first.held
    windows.check()


def test_who_is_alone_makes_a_block_whole_and_shares_it_with_nobody() -> None:
    windows, slots = Windows(), [filling(), filling()]
    first, second = (windows.open(slot, 1, LAYOUT.whole, LAYOUT) for slot in slots)
    windows.check()
    assert windows.reserved(slots[0]) and windows.slot_of(GROUP) is None
    assert windows.seal_all([second, first], 0.0) == [True, True]
    assert len(windows) == 0 and not any(slot.held or windows.reserved(slot) for slot in slots)


def test_who_is_alone_and_seals_a_part_waits_for_nobody_to_come() -> None:
    windows, slot = Windows(), filling()
    window = windows.open(slot, 1, LEFT, LAYOUT)
    assert not windows.seal(window, 5.0)
    windows.check()
    assert windows.reserved(slot) and not list(windows.overdue(4.0))
    assert list(windows.overdue(5.0)) == [window]
    windows.give_up(window)
    slot.move(State.DOOMED)
    assert len(windows) == 0 and not windows.reserved(slot) and not slot.held


def test_who_is_alone_holds_the_memory_of_what_was_given_up_until_it_is_let_go() -> None:
    windows, slot = Windows(), filling()
    window = windows.open(slot, 1, LAYOUT.whole, LAYOUT)
    for _ in range(2):
        windows.give_up(window)
        assert slot.held and windows.get(window.serial) is window and not windows.reserved(slot)
    slot.move(State.DOOMED)
    windows.check()
    windows.close(window)
    assert len(windows) == 0 and not slot.held
    windows.check()


def test_a_block_whole_too_soon_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(self: Windows, window: Window, now: float) -> bool:
        window.sealed = True
        window.slot.windows -= 1
        for member in self._of_group.pop(window.group):
            self._forget([member])
        return True

    monkeypatch.setattr(Windows, "seal", eager)
    with TURNS_RED:
        groups_behave_like_sets_of_strips(0)


def test_an_abort_that_frees_the_other_members_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(self: Windows, window: Window) -> None:
        for member in self._of_group.pop(window.group, []):
            member.slot.windows -= not member.sealed
            self._forget([member])

    monkeypatch.setattr(Windows, "give_up", hasty)
    with TURNS_RED:
        test_one_member_dying_dooms_the_block_but_not_the_memory_of_the_others()
    with TURNS_RED:
        groups_behave_like_sets_of_strips(0)


def test_a_late_abort_that_hits_the_next_block_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Windows, "give_up", lambda self, window: self._of_group.pop(window.group, None)
    )
    with TURNS_RED:
        test_a_group_may_begin_a_key_again_while_the_old_memory_is_still_held()
