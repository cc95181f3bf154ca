"""Sessions that hold write windows, and which of them have stood still for too long.

A session that maps the node's memory may write at any time, so its windows never end by time. One
that does not can write only through the owner. It may be on a host that is gone, behind a
connection that nobody ever ends; then it would hold its slots for ever.
"""

from __future__ import annotations

from kvstore.core.windows import Windows
from kvstore.limits import REMOTE_WINDOW_SECONDS
from kvstore.node.sessions import Session


class Writers:
    """Told of every session that reserves, or whose bytes come in."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._sessions: dict[int, Session] = {}  # by serial

    def stirred(self, session: Session, now: float) -> None:
        session.stirred = now
        self._sessions[session.serial] = session

    def still(self, now: float) -> list[Session]:
        """Those who have stood still with windows for too long, and cannot write by themselves.
        They may map no memory from now on: they know where their windows were.

        What the owner is moving this moment is held by it; it looks again before it begins another.
        """
        found, before = [], now - REMOTE_WINDOW_SECONDS
        for session in list(self._sessions.values()):
            if not self._windows.any_of(session.serial):
                del self._sessions[session.serial]
                continue
            if session.stirred > before or session.may_write:
                continue  # and what it opened by one call stays one run
            if not any(one.slot.moves for one in self._windows.of_session(session.serial)):
                session.lapsed = True
                found.append(session)
        return found
