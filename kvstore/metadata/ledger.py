"""The metadata rules as SQLite transactions: revisions without gaps, leases that end on time.

Every change is logged in its own transaction, so the log *is* the history. Every transaction, but
for one that keeps a lease alive, first ends the leases that are overdue, and reads the clock only
once it holds the lock, so a lease that any reader saw ended can no longer be kept alive. No process
has to be alive for that: whoever looks next, ends it.

Nothing here waits: a held lock is `Busy`, with nothing done.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from kvstore.clock import Clock
from kvstore.errors import ConfigError, Overloaded
from kvstore.metadata.bounds import INT64_MAX, prefix_end
from kvstore.metadata.change_log import ChangeLog, Page, stored_entry
from kvstore.metadata.protocol import Entry, Kind, Lease, LeaseLost
from kvstore.metadata.sqlite_failure import Busy
from kvstore.metadata.sqlite_file import SqliteFile

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LEASES_MAX = 16_384  # nodes, with room


class Ledger:
    """Belongs to the thread that opened its file."""

    def __init__(self, file: SqliteFile, clock: Clock, changes_kept: int) -> None:
        self._file = file
        self._clock = clock
        self._log = ChangeLog(file, changes_kept)
        self._boot = boot_id()
        self._seen_version = (-1, -1)
        self._seen_head = -1
        self._next_end = float("inf")
        self._looked = clock.now()
        with file.transaction():
            ((boot,),) = file.rows("SELECT boot FROM head")
            if boot != self._boot:  # deadlines of another boot mean nothing, and so do its holders
                self._end_leases(float("inf"))
                file.rows("UPDATE head SET boot = ?", self._boot)

    def get(self, key: bytes) -> Entry | None:
        with self._reading():
            found = self._file.rows(
                "SELECT key, value, revision, lease FROM entries WHERE key = ?", key
            )
        return stored_entry(*found[0]) if found else None

    def list(self, prefix: bytes) -> tuple[list[Entry], int]:
        with self._reading():
            found = self._file.rows(
                "SELECT key, value, revision, lease FROM entries WHERE key >= ? AND key < ? "
                "ORDER BY key",
                *(prefix, prefix_end(prefix)),
            )
            ((head,),) = self._file.rows("SELECT revision FROM head")
        return [stored_entry(*row) for row in found], head

    def put(self, key: bytes, value: bytes, lease: int) -> int:
        with self._writing():
            return self._put(key, value, lease)

    def put_if(self, key: bytes, value: bytes, expected: int, lease: int) -> int | None:
        with self._writing():
            return self._put(key, value, lease) if self._revision(key) == expected else None

    def delete(self, key: bytes) -> bool:
        with self._writing():
            return self._delete(key) if self._revision(key) else False

    def delete_if(self, key: bytes, expected: int) -> bool:
        with self._writing():
            return self._delete(key) if expected and self._revision(key) == expected else False

    def grant(self, ttl_ms: int) -> Lease:
        # A random id, so that a holder from before the file was made anew meets no other's lease.
        lease = Lease(1 + secrets.randbelow(INT64_MAX), ttl_ms)
        with self._writing():
            ((leases,),) = self._file.rows("SELECT count(*) FROM leases")
            if leases >= LEASES_MAX:
                raise Overloaded(f"{self._file.path} holds {leases} leases, which is the limit")
            deadline = self._clock.now() + ttl_ms / 1_000
            self._file.rows("INSERT INTO leases VALUES (?, ?, ?)", lease.id, ttl_ms, deadline)
        return lease

    def keep_alive(self, lease: Lease) -> None:
        # Whoever looks once its time is over ends it: one that is here was held for dead by nobody.
        with self._locked():
            self._need_lease(lease.id)
            self._file.rows(
                "UPDATE leases SET deadline = ? + ttl_ms / 1000.0 WHERE id = ?",
                *(self._clock.now(), lease.id),
            )

    def revoke(self, lease: Lease) -> None:
        with self._writing():
            self._end_lease(lease.id)

    def changes(self, prefix: bytes, cursor: int) -> Page:
        """The next changes after `cursor`. Takes no lock, so nothing can hold up a watch."""
        with self._file.snapshot():
            return self._log.page(prefix, cursor)

    def moved(self) -> bool:
        """Whether the revision is another than at the last call; ends leases overdue since then.

        So whoever looks again after standing still leaves a holder that stood still with it, as
        another thread of a stopped process does, until its next look.
        """
        looked, self._looked = self._looked, self._clock.now()
        version = self._file.version()
        before = self._seen_head
        if version != self._seen_version:
            with self._file.snapshot():
                self._next_end = self._earliest_end()
                ((self._seen_head,),) = self._file.rows("SELECT revision FROM head")
            self._seen_version = version
        if self._next_end <= looked:
            with contextlib.suppress(Busy), self._writing():
                pass  # the changes this makes are seen at the next call
        return self._seen_head != before

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._file.snapshot():
            if self._earliest_end() > self._clock.now():
                yield
                return
        with self._writing():
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._locked():
            self._end_leases(self._clock.now())
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._file.transaction():
            ((boot,),) = self._file.rows("SELECT boot FROM head")
            if boot != self._boot:
                raise ConfigError(
                    f"{self._file.path} is in use by another host too; give each host its own file"
                )
            yield

    def _earliest_end(self) -> float:
        ((deadline,),) = self._file.rows("SELECT min(deadline) FROM leases")
        return float("inf") if deadline is None else float(deadline)

    def _end_leases(self, now: float) -> None:
        for (lease,) in self._file.rows(
            "SELECT id FROM leases WHERE deadline <= ? ORDER BY deadline, id", now
        ):
            self._end_lease(lease)

    def _end_lease(self, lease: int) -> None:
        for (key,) in self._file.rows(
            "SELECT key FROM entries WHERE lease = ? AND lease <> 0 ORDER BY key", lease
        ):
            self._delete(key)
        self._file.rows("DELETE FROM leases WHERE id = ?", lease)

    def _need_lease(self, lease: int) -> None:
        if not self._file.rows("SELECT 1 FROM leases WHERE id = ?", lease):
            raise LeaseLost(f"lease {lease} ended, or was never granted here")

    def _revision(self, key: bytes) -> int:
        found = self._file.rows("SELECT revision FROM entries WHERE key = ?", key)
        return int(found[0][0]) if found else 0

    def _put(self, key: bytes, value: bytes, lease: int) -> int:
        if lease:
            self._need_lease(lease)
        revision = self._log.append(Kind.PUT, key, value, lease)
        self._file.rows(
            "INSERT INTO entries VALUES (?1, ?2, ?3, ?4) ON CONFLICT (key) DO UPDATE "
            "SET value = ?2, revision = ?3, lease = ?4",
            *(key, value, revision, lease),
        )
        return revision

    def _delete(self, key: bytes) -> bool:
        self._log.append(Kind.DELETE, key, b"", 0)
        self._file.rows("DELETE FROM entries WHERE key = ?", key)
        return True


def boot_id() -> str:
    """Names the run of this kernel: CLOCK_MONOTONIC starts anew with it."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read {BOOT_ID}, which leases need: {error}") from error
