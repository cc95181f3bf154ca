"""Sessions: the life a caller's windows and pins are tied to.

A session begins with a stream and ends with it. If its process has mapped the arena, the process
may still be writing when the stream breaks (it may have been stopped), so its windows keep their
memory until the data socket says that every process holding the mapping is gone.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass, field

from kvstore.core.turns import Places
from kvstore.errors import Overloaded, SessionEnded
from kvstore.limits import SESSIONS_MAX

_RETRY_MS = 1_000


@dataclass(eq=False, slots=True)
class Session:
    """One caller. `token` names it in calls, `shm_token` maps the arena, and `data_token` opens
    data connections, and sockets to make calls on."""

    serial: int
    tenant: str
    label: str
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    shm_token: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    data_token: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    streaming: bool = True  # its stream is open
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)  # the node ends it
    calling: int = 0  # sockets that its processes make calls on
    numa_node: int | None = None  # of the host, that its processes or their GPU are on
    names_memory: bool = False  # is believed when it says where memory of its own lies
    mappings: int = 0  # data sockets through which its processes have mapped the arena
    stirred: float = 0.0  # the node's monotonic seconds: when it last reserved or moved bytes in
    lapsed: bool = False  # its windows ended by time, so it may never write by itself any more

    @property
    def may_write(self) -> bool:
        """Whether one of its processes may still write to mapped memory."""
        return self.mappings > 0


class Sessions:
    """The sessions of a node that have not wholly ended."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, Session] = {}
        self._by_shm_token: dict[bytes, Session] = {}
        self._by_data_token: dict[bytes, Session] = {}
        self._places = Places(SESSIONS_MAX)
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_token)

    def begin(self, tenant: str, label: str) -> Session:
        if not self._places.try_take(tenant):
            held, free = self._places.held(tenant), self._places.free
            raise Overloaded(
                f"{held} sessions of {tenant} are open, and a node serves {free} more of others: "
                "close some",
                _RETRY_MS,
            )
        session = Session(self._next, tenant, label)
        self._next += 1
        self._by_token[session.token] = session
        self._by_shm_token[session.shm_token] = session
        self._by_data_token[session.data_token] = session
        return session

    def find(self, token: bytes, tenant: str) -> Session:
        session = self._by_token.get(token)
        if session is None or session.tenant != tenant:
            raise SessionEnded("the session is not known here: begin one with the Session stream")
        return session

    def by_shm_token(self, token: bytes) -> Session | None:
        session = self._by_shm_token.get(token)
        return None if session is None or session.lapsed else session

    def by_call_token(self, data_token: bytes) -> Session | None:
        return self._by_data_token.get(data_token)

    def by_data_token(self, token: bytes, data_token: bytes) -> Session | None:
        session = self._by_token.get(token)
        known = session is not None and hmac.compare_digest(session.data_token, data_token)
        return session if known else None

    def end_remote(self) -> None:
        """Break the streams of sessions that have mapped nothing: their callers begin others.

        Whoever maps the memory is of this host, and was stopped with it or not at all.
        """
        for session in list(self._by_token.values()):
            if not session.mappings:
                session.over.set()

    def end(self, session: Session) -> None:
        """The stream is over: the session can make no more calls and map nothing."""
        session.streaming = False
        if self._by_token.pop(session.token, None) is not None:
            self._places.give_back(session.tenant)
        self._by_shm_token.pop(session.shm_token, None)
        self._by_data_token.pop(session.data_token, None)
