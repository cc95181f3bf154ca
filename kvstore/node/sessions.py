"""Sessions: the life a caller's windows and pins are tied to.

A session begins with a stream and ends with it. If its process has mapped the arena, the process
may still be writing when the stream breaks (it may have been stopped), so its windows keep their
memory until the data socket says that every process holding the mapping is gone.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from kvstore.errors import Overloaded, SessionEnded
from kvstore.limits import SESSIONS_MAX

_RETRY_MS = 1_000


@dataclass(eq=False, slots=True)
class Session:
    """One caller. `token` names it in calls; `shm_token` maps the arena."""

    serial: int
    tenant: str
    label: str
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    shm_token: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    streaming: bool = True  # its stream is open
    mappings: int = 0  # data sockets through which its processes have mapped the arena

    @property
    def may_write(self) -> bool:
        """Whether one of its processes may still write to mapped memory."""
        return self.mappings > 0


class Sessions:
    """The sessions of a node that have not wholly ended."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, Session] = {}
        self._by_shm_token: dict[bytes, Session] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_token)

    def begin(self, tenant: str, label: str) -> Session:
        if len(self._by_token) >= SESSIONS_MAX:
            raise Overloaded(f"{SESSIONS_MAX} sessions are open, the most a node serves", _RETRY_MS)
        session = Session(self._next, tenant, label)
        self._next += 1
        self._by_token[session.token] = session
        self._by_shm_token[session.shm_token] = session
        return session

    def find(self, token: bytes, tenant: str) -> Session:
        session = self._by_token.get(token)
        if session is None or session.tenant != tenant:
            raise SessionEnded("the session is not known here: begin one with the Session stream")
        return session

    def by_shm_token(self, token: bytes) -> Session | None:
        return self._by_shm_token.get(token)

    def end(self, session: Session) -> None:
        """The stream is over: the session can make no more calls and map nothing."""
        session.streaming = False
        self._by_token.pop(session.token, None)
        self._by_shm_token.pop(session.shm_token, None)
