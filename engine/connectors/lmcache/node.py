"""One rank's calls to its node: verified loads, stores in pieces, holds; none of them ever raises.

Whatever goes wrong is a miss, after at most a few deadlines. A change of the node's state is one
line in LMCache's log, and so is each kind of chunk that is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from lmcache.logging import init_logger
from lmcache.v1.memory_management import MemoryObj

from kvstore.client import Client, Denied, Hold, Invalid, KVStoreError
from kvstore.client.hold_each import hold_each

from .chunks import memory_of
from .facts import Facts
from .settings import Settings

log = init_logger(__name__)

T = TypeVar("T")

MOVE_BYTES = 64 << 20  # chunks move in pieces of about so much: a call holds no more slots open


class Node:
    """The pool as one rank of LMCache sees it. Safe to use from several threads."""

    def __init__(self, facts: Facts, settings: Settings, rank: int) -> None:
        self._where, self._pin_ms = settings.moonpool, settings.pin_ms
        self._group = facts.spec.groups[0]
        self._client = Client(
            settings.locator,
            facts.spec,
            label=f"lmcache-{rank}",
            deadline_seconds=settings.deadline_ms / 1e3,
        )
        self._piece = max(1, MOVE_BYTES // self._client.space.layout.payload_bytes)
        self._lock = threading.Lock()
        self._state = ""  # the last that was said of the node
        self._told: set[str] = set()

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Which chunks can be had now."""
        client, nothing = self._client, [False] * len(names)
        return self._ask(lambda: client.exists_each(client.keyed(names)), nothing, any)

    def hold(self, names: Sequence[str]) -> Hold | None:
        """Keep the leading chunks that are there from going; None if there is none."""
        client = self._client

        def hold() -> Hold | None:
            held = hold_each(client, client.keyed(names), pin_ms=self._pin_ms)
            if held.blocks:
                return held
            held.release()
            return None

        return self._ask(hold, None, bool)

    def load(self, names: Sequence[str], chunks: Sequence[MemoryObj]) -> list[bool]:
        """Fill chunks; True for each whose bytes are those that were stored, whole and verified.

        The first piece that is not loaded whole ends it: chunks behind a hole are not used, and
        from a slow holder each would cost another deadline.
        """
        loaded: list[bool] = []
        for first in range(0, len(chunks), self._piece):
            some = slice(first, first + self._piece)
            loaded += self._load(names[some], chunks[some])
            if not all(loaded):
                break
        return loaded + [False] * (len(chunks) - len(loaded))

    def store(self, names: Sequence[str], before: str, chunks: Sequence[MemoryObj]) -> list[bool]:
        """Store chunks in order; True for each that is in the pool, now or before.

        `before` names the chunk before the first, empty where nobody knows of one: in the pool each
        makes room before the one it comes after. The first piece that is not stored ends it:
        chunks behind a hole are not looked for.
        """
        stored: list[bool] = []
        for first in range(0, len(chunks), self._piece):
            some = slice(first, first + self._piece)
            after = names[first - 1] if first else before
            stored += self._store(names[some], after, chunks[some])
            if not stored[-1]:
                break
        return stored + [False] * (len(chunks) - len(stored))

    def remove(self, names: Sequence[str]) -> int:
        """Take chunks out of the pool; how many were there."""
        client = self._client
        return self._ask(lambda: client.remove(client.keyed(names)), 0, bool)

    @property
    def answers(self) -> bool:
        """Whether it is worth asking: a node that failed a moment ago is left alone for a while."""
        try:
            return self._client.connection.link() is not None
        except Exception as error:
            self._failed(error)
            return False

    def tell(self, what: str) -> None:
        """Log something once."""
        with self._lock:
            known = what in self._told
            self._told.add(what)
        if not known:
            log.warning("Moonpool: %s", what)

    def close(self) -> None:
        self._client.close()

    def _load(self, names: Sequence[str], chunks: Sequence[MemoryObj]) -> list[bool]:
        client, nothing = self._client, [False] * len(names)
        memory = memory_of(chunks, self._group)
        return self._ask(lambda: client.load_each(client.keyed(names), memory), nothing, any)

    def _store(self, names: Sequence[str], after: str, chunks: Sequence[MemoryObj]) -> list[bool]:
        client, nothing = self._client, [False] * len(names)
        memory = memory_of(chunks, self._group)

        def store() -> list[bool]:
            stored = client.store_each(client.keyed(names, after=after), memory)
            if not all(stored) and self.answers:
                self.tell(
                    f"chunks are not stored though {self._where} answers: it is full of what may "
                    "not go, over a quota, or draining"
                )
            return stored

        return self._ask(store, nothing, any)

    def _ask(self, call: Callable[[], T], otherwise: T, reached: Callable[[T], bool]) -> T:
        """Make a call. `reached` says of its answer whether only a node can have given it."""
        if not self.answers:
            return otherwise
        try:
            answer = call()
        except (Denied, Invalid) as error:  # for as long as nobody changes something
            self._say("")
            self.tell(f"chunks are not kept: {error}")
            return otherwise
        except Exception as error:  # whatever it is, the engine goes on
            self._failed(error)
            return otherwise
        if not reached(answer) and not self.answers:  # a miss, since the node went meanwhile
            return otherwise
        self._say("")
        return answer

    def _failed(self, error: Exception) -> None:
        why = error if isinstance(error, KVStoreError) else repr(error)
        self._say(f"{self._where} is not used, LMCache goes without it: {why}")

    def _say(self, failure: str) -> None:
        with self._lock:
            changed, self._state = bool(failure) != bool(self._state), failure
        if changed and failure:
            log.warning("Moonpool: %s", failure)
        elif changed:
            log.warning("Moonpool: %s answers again", self._where)
