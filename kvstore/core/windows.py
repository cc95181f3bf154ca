"""Write windows: who may still write which fragment of a filling slot.

A writer group shares slots; each of its members owns one fragment and seals it by itself. A member
who names no group is alone: no other window is ever opened on its slots. A window on mapped memory
never expires by time, because a stopped process may resume and write: it ends when its own member
seals or aborts it, or when the member's process is gone. So aborting a block dooms the slot at
once, but its memory is held until every member has let go.

What one call opens on whole blocks is mostly sealed by one call as well: it is one `Run`, and each
of its windows comes to be when somebody asks for it by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvstore.core.lifecycle import Slot, State
from kvstore.errors import AlreadyWritten
from kvstore.layout import Fragment, SlotLayout

GroupKey = tuple[str, str, bytes]  # tenant, writer group, stored key


@dataclass(eq=False, slots=True)
class Window:
    """One member's right to write one fragment of one slot."""

    serial: int
    slot: Slot
    generation: int
    session: int
    fragment: Fragment
    layout: SlotLayout
    group: GroupKey | None  # None: its member is alone
    sealed: bool = False
    lost: bool = False  # of a member that is alone: the block was given up
    writing: tuple[Fragment, ...] = ()  # what the owner is moving in right now

    def moved(self, fragment: Fragment) -> None:
        """The owner moves this one in no more."""
        left = list(self.writing)
        left.remove(fragment)
        self.writing = tuple(left)


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """Windows with consecutive serials, each on a whole block and of a member that is alone."""

    first: int
    slots: Sequence[Slot]
    session: int
    layout: SlotLayout

    @property
    def serials(self) -> range:
        return range(self.first, self.first + len(self.slots))


class Windows:
    """The windows of every block that is being written, by serial, session and writer group."""

    def __init__(self) -> None:
        self._windows: dict[int, Window] = {}
        self._of_group: dict[GroupKey, list[Window]] = {}  # only blocks that can become whole
        self._of_session: dict[int, set[int]] = {}
        self.of_tenant = Counter[str]()  # how many; a session writes its own tenant's slots alone
        self.on_held: Callable[[Sequence[Slot]], None] = lambda slots: None  # by nobody until now
        self.on_unheld: Callable[[Sequence[Slot]], None] = lambda slots: None  # by nobody from now
        self._waiting: deque[tuple[float, int]] = deque()  # sealed before their partners, by time
        self._in_part = set[Slot]()  # sealed in part, and not given up: nothing else goes there
        self._runs: list[Run] = []  # of which no window is among the others yet, by serial
        self._in_runs = 0  # windows
        self._next = 1

    def __len__(self) -> int:
        return len(self._windows) + self._in_runs

    def __iter__(self) -> Iterator[Window]:
        self._part([*self._runs])
        return iter(self._windows.values())

    def get(self, serial: int) -> Window | None:
        at = self._before(serial)
        if at >= 0 and serial in self._runs[at].serials:
            self._part([self._runs[at]])
        return self._windows.get(serial)

    def run(self, first: int, count: int) -> Run | None:
        """The windows with these serials, if one call opened just these and nobody has asked for
        any of them by itself."""
        at = self._before(first)
        run = self._runs[at] if at >= 0 else None
        return run if run is not None and (run.first, len(run.slots)) == (first, count) else None

    @property
    def writing(self) -> int:
        """Windows whose member may still write."""
        return len(self) - sum(window.sealed for window in self._windows.values())

    def reserved(self, slot: Slot) -> bool:
        """Whether whoever writes the slot's block can still make it whole."""
        single = self._windows.values()
        alone = (one.slot is slot and one.group is None and not one.lost for one in single)
        shared = (members[0].slot is slot for members in self._of_group.values())
        return any(shared) or any(alone) or any(slot in run.slots for run in self._runs)

    def not_in_part(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """These without those of which a part is sealed and waits for the others."""
        waiting = self._in_part
        return [slot for slot in slots if slot not in waiting] if waiting else slots

    def slot_of(self, group: GroupKey) -> Slot | None:
        """The slot the group is filling for this key, if a member has reserved it."""
        members = self._of_group.get(group)
        return members[0].slot if members else None

    def check_free(self, group: GroupKey, fragment: Fragment) -> None:
        """Raise `AlreadyWritten` if another member has reserved part of the fragment."""
        for window in self._of_group.get(group, ()):
            if window.fragment.overlaps(fragment):
                raise AlreadyWritten(
                    f"{fragment} overlaps {window.fragment}, which a member of writer group "
                    f"{group[1]!r} has reserved; members of a group must own separate fragments"
                )

    def open(
        self,
        slot: Slot,
        session: int,
        fragment: Fragment,
        layout: SlotLayout,
        group: GroupKey | None = None,
    ) -> Window:
        groups = [group] if group is not None else ()
        window = self.get(self.open_all([slot], session, fragment, layout, groups))
        assert window is not None, "it was opened just now"
        return window

    def open_all(
        self,
        slots: Sequence[Slot],
        session: int,
        fragment: Fragment,
        layout: SlotLayout,
        groups: Sequence[GroupKey] = (),
    ) -> int:
        """A window on each of these slots, with consecutive serials; the first of them. Without
        `groups`, one a slot, their member is alone."""
        first = self._next
        self._next += len(slots)
        for slot in slots:
            assert slot.state is State.FILLING, "only a filling slot can be written"
            slot.windows += 1
        # A slot that a group joins, or that is read while it fills, is held already.
        fresh = [slot for slot in slots if slot.windows == 1 and not slot.pins]
        self.on_held(self.not_in_part(fresh))
        if slots:
            self.of_tenant[slots[0].tenant] += len(slots)
        if slots and not groups and fragment == layout.whole:
            self._runs.append(Run(first, slots, session, layout))
            self._in_runs += len(slots)
            return first
        self._open(first, slots, session, fragment, layout)
        for serial, group in enumerate(groups, first):
            window = self._windows[serial]
            window.group = group
            self._of_group.setdefault(group, []).append(window)
        return first

    def seal(self, window: Window, now: float) -> bool:
        """The member has written its fragment and writes no more. True when the block is whole.

        Until then the window stays, so that the block is given up if the member's session ends, or
        if its partners never come.
        """
        return self.seal_all([window], now)[0]

    def seal_all(self, windows: Sequence[Window], now: float) -> list[bool]:
        """The same for each of these, in this order."""
        whole: list[bool] = []
        over: list[Window] = []
        full: list[Slot] = []
        groups = self._of_group
        for window in windows:
            assert not window.sealed, "sealed twice"
            window.sealed = True
            window.slot.windows -= 1
            members: Sequence[Window] = (window,)
            done = window.fragment.strips
            if window.group is not None:
                members = groups[window.group]
                done = sum([one.fragment.strips for one in members if one.sealed])
            if done == window.layout.strips:
                whole.append(True)
                if window.group is not None:
                    del groups[window.group]
                over += members
                full.append(window.slot)
            else:
                whole.append(False)
                self._in_part.add(window.slot)
                self._waiting.append((now, window.serial))
        self._in_part.difference_update(full)
        self._unheld(full)
        self._forget(over)
        return whole

    def seal_run(self, run: Run) -> None:
        """The member has written all of each, and each is whole."""
        self._lets_go(run.slots)
        self.of_tenant[run.slots[0].tenant] -= len(run.slots)
        self._take(run)

    def give_up(self, window: Window) -> None:
        """The block will not become whole. Windows that may still write stay until `close`."""
        members: Sequence[Window] = ()
        if window.group is None:
            members = () if window.lost else (window,)
            window.lost = True
        elif self.slot_of(window.group) is window.slot:
            members = self._of_group.pop(window.group)
        if members and window.slot in self._in_part:
            self._in_part.remove(window.slot)
            self._unheld([window.slot])
        self._forget([member for member in members if member.sealed])

    def close(self, window: Window) -> None:
        """The member of a block that was given up can write no more."""
        assert not window.sealed, "it was sealed"
        assert window.lost or (window.group and self.slot_of(window.group) is not window.slot)
        self._lets_go([window.slot])
        self._forget([window])

    def overdue(self, before: float) -> Iterator[Window]:
        """Members that sealed by then and still wait for partners; the caller gives each up."""
        while self._waiting and self._waiting[0][0] <= before:
            window = self._windows.get(self._waiting.popleft()[1])
            if window is not None:
                yield window

    def any_of(self, session: int) -> bool:
        """Whether a session has windows."""
        return session in self._of_session or any(run.session == session for run in self._runs)

    def of_session(self, session: int) -> list[Window]:
        self._part([run for run in self._runs if run.session == session])
        return [self._windows[serial] for serial in self._of_session.get(session, ())]

    def check(self) -> None:
        writing: dict[int, int] = {}
        for serial, window in self._windows.items():
            assert window.serial == serial and serial in self._of_session[window.session]
            assert window.slot.generation == window.generation, "a window outlived its slot"
            if not window.sealed:
                writing[id(window.slot)] = writing.get(id(window.slot), 0) + 1
            if window.slot.state is State.FILLING or window.sealed:
                members = [window] if window.group is None else self._of_group[window.group]
                assert window in members and not window.lost, "a filling slot without its group"
            else:
                assert window.slot.state is State.DOOMED, "a window on sealed memory"
        assert sum(map(len, self._of_session.values())) == len(self._windows)
        in_part = {window.slot for window in self._windows.values() if window.sealed}
        assert in_part == self._in_part, "a part that waits for nothing, or is not known to"
        slots = [slot for run in self._runs for slot in run.slots]
        slots += [window.slot for window in self._windows.values()]
        of_tenant = Counter(slot.tenant for slot in slots)
        assert of_tenant == self.of_tenant, "a tenant's windows are miscounted"
        opened = [serial for run in self._runs for serial in run.serials]
        assert len(opened) == self._in_runs, "windows in runs are miscounted"
        assert opened == sorted(opened) and not self._windows.keys() & set(opened), "opened twice"
        for slot in [slot for run in self._runs for slot in run.slots]:
            assert slot.state is State.FILLING and slot.windows == 1, "a run that was disturbed"
        for window in self._windows.values():
            counted = writing.get(id(window.slot), 0)
            assert window.slot.windows == counted, "a slot miscounts who may write it"
        for members in self._of_group.values():
            assert len({id(w.slot) for w in members}) == 1, "a group spread over slots"
            assert members[0].slot.state is State.FILLING, "a group on a slot that is not filling"

    def _lets_go(self, slots: Sequence[Slot]) -> None:
        """One window less on each of these, each named once."""
        for slot in slots:
            slot.windows -= 1
        self._unheld(slots)

    def _unheld(self, slots: Sequence[Slot]) -> None:
        self.on_unheld([slot for slot in slots if not (slot.windows or slot.pins)])

    def _before(self, serial: int) -> int:
        """Of the last run that begins there or before; -1 if none does."""
        return bisect_right(self._runs, serial, key=lambda run: run.first) - 1

    def _part(self, runs: Sequence[Run]) -> None:
        """Let each window of these be one by itself."""
        for run in runs:
            self._take(run)
            self._open(run.first, run.slots, run.session, run.layout.whole, run.layout)

    def _take(self, run: Run) -> None:
        self._runs.remove(run)
        self._in_runs -= len(run.slots)

    def _open(
        self,
        first: int,
        slots: Sequence[Slot],
        session: int,
        fragment: Fragment,
        layout: SlotLayout,
    ) -> None:
        for serial, slot in enumerate(slots, first):
            window = Window(serial, slot, slot.generation, session, fragment, layout, None)
            self._windows[serial] = window
        if slots:
            serials = range(first, first + len(slots))
            self._of_session.setdefault(session, set()).update(serials)

    def _forget(self, windows: Sequence[Window]) -> None:
        for window in windows:
            del self._windows[window.serial]
        if windows:
            self.of_tenant[windows[0].slot.tenant] -= len(windows)
        sessions = {window.session for window in windows}
        for session in sessions:
            mine = windows if len(sessions) == 1 else [w for w in windows if w.session == session]
            serials = self._of_session[session]
            serials.difference_update([one.serial for one in mine])
            if not serials:
                del self._of_session[session]
