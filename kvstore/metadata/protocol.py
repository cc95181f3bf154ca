"""The one door to shared metadata: what every form of it promises, modelled on etcd v3.

A form keeps a map from keys to values and one revision that grows with every change of any key.
Each call takes effect at one moment between its start and its end, in the order of the revisions,
for every client of the store. All forms pass one contract suite (tests/metadata), so callers never
learn which form they hold.

Any call may raise `Unavailable` (no answer by the deadline; a write may or may not have happened:
read before repeating it), `StoreClosed`, or, where the store knows users, `Denied`. What a call may
carry is in `kvstore.metadata.bounds`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kvstore.errors import Lapsed


class LeaseLost(Lapsed):
    """The lease ended, and its keys with it. Ask for a new one and put the keys again."""


class StoreClosed(Lapsed):
    """This client was closed. Open another."""


class Compacted(Lapsed):
    """The changes after the asked revision are no longer all kept. List again, watch from there."""

    def __init__(self, message: str, compact_revision: int) -> None:
        super().__init__(message)
        self.compact_revision = compact_revision  # changes up to this revision are gone


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes = field(repr=False)  # values hold secrets; logs must not
    revision: int  # of the put that made this entry what it is
    lease: int = 0  # the id of the lease it ends with; 0 for none


class Kind(Enum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One key's change. A DELETE's entry has the key, an empty value, no lease."""

    kind: Kind
    entry: Entry
    revision: int  # equals entry.revision


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    ttl_ms: int  # as granted; a form may round up, never down


class Metadata(Protocol):
    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> tuple[list[Entry], int]:
        """All entries whose key starts with `prefix`, by key, and the revision they show.

        `watch(prefix, revision)` continues from exactly there.
        """
        ...

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Store and return the revision. The key ends with `lease`, or with no lease if 0.

        Raises `LeaseLost` if the lease is gone.
        """
        ...

    async def put_if(
        self, key: str, value: bytes, *, expected_revision: int, lease: int = 0
    ) -> int | None:
        """Put if the entry's revision is the expected one (0: there is none), else None."""
        ...

    async def delete(self, key: str) -> bool:
        """True if there was an entry. Deleting nothing is no change."""
        ...

    async def delete_if(self, key: str, *, expected_revision: int) -> bool:
        """Delete if the entry's revision is the expected one (at least 1); True if it was."""
        ...

    async def grant(self, ttl_ms: int) -> Lease:
        """A lease that ends `ttl_ms` after this call or its last `keep_alive`."""
        ...

    async def keep_alive(self, lease: Lease) -> None:
        """Start the lease's time anew. Raises `LeaseLost` once it ended; it never comes back.

        A form may keep alive one whose time is over, where nobody has seen it end.
        """
        ...

    async def revoke(self, lease: Lease) -> None:
        """End the lease now; its keys are deleted. A lease already gone is no error."""
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        """Every change under `prefix` with revision > from_revision, in order, once, then live.

        Raises `Compacted` when some of them are no longer kept, at the start or when the reader
        falls behind, and when the store never was at `from_revision`: it was made anew, or
        restored. One whose history since then is longer than the old one does not show it, so
        nobody goes by a watch for ever (`kvstore.metadata.watching`). Goes on by itself over a
        connection that breaks, and raises `Unavailable` once nobody has answered for some seconds:
        its silence means that nothing changed.

        After any error the iteration is over: list again, or watch again from the revision
        *before* the last change seen, and skip what was seen (the deletes at a lease's end may
        share one revision). Wrap it in `contextlib.aclosing` if you leave it early.
        """
        ...

    async def close(self) -> None:
        """Let go of the store. Calls and watches under way raise `StoreClosed`. Idempotent.

        Leases live on until their time is over: a restart may be quicker than they are.
        """
        ...
