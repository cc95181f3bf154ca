"""Metadata in one SQLite file that the processes of a host share: the default, nothing to start.

Each call is one transaction done on the store's own thread, so the event loop never waits for a
disk and SQLite's own locking orders all processes. Leases run on the host's monotonic clock, which
every process of the host reads alike and nobody can set. The file must be on a local file system.

A store belongs to the process that opened it (open after a fork) and to one event loop at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

from kvstore.clock import Clock, SystemClock
from kvstore.metadata.bounds import (
    check_int64,
    check_ttl,
    check_value,
    key_bytes,
    prefix_bytes,
)
from kvstore.metadata.change_log import CHANGES_KEPT
from kvstore.metadata.ledger import Ledger
from kvstore.metadata.protocol import Change, Entry, Lease
from kvstore.metadata.sqlite_file import SqliteFile
from kvstore.metadata.worker import Worker

BUSY_S = 2.0  # no healthy writer holds the lock longer than a few fsyncs
WATCH_RECHECK_S = 1.0  # a watch looks by itself this often, so no lost ring can hang it


class EmbeddedMetadata:
    """Satisfies `Metadata`. Opening it blocks for a few file operations, `busy_s` at most."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        busy_s: float = BUSY_S,
        changes_kept: int = CHANGES_KEPT,
    ) -> None:
        self.path = path.absolute()
        lease_clock = clock or SystemClock()

        def open_ledger() -> Ledger:
            file = SqliteFile(self.path)
            try:
                return Ledger(file, lease_clock, changes_kept)
            except BaseException:
                file.close()
                raise

        self._worker = Worker(str(self.path), open_ledger, busy_s)

    async def get(self, key: str) -> Entry | None:
        stored_key = key_bytes(key)
        return await self._worker.call(lambda ledger: ledger.get(stored_key))

    async def list(self, prefix: str) -> tuple[list[Entry], int]:
        stored_prefix = prefix_bytes(prefix)
        return await self._worker.call(lambda ledger: ledger.list(stored_prefix))

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        stored_key = key_bytes(key)
        check_value(value)
        check_int64("lease", lease)
        return await self._worker.call(lambda ledger: ledger.put(stored_key, value, lease))

    async def put_if(
        self, key: str, value: bytes, *, expected_revision: int, lease: int = 0
    ) -> int | None:
        stored_key = key_bytes(key)
        check_value(value)
        check_int64("expected_revision", expected_revision)
        check_int64("lease", lease)
        return await self._worker.call(
            lambda ledger: ledger.put_if(stored_key, value, expected_revision, lease)
        )

    async def delete(self, key: str) -> bool:
        stored_key = key_bytes(key)
        return await self._worker.call(lambda ledger: ledger.delete(stored_key))

    async def delete_if(self, key: str, *, expected_revision: int) -> bool:
        stored_key = key_bytes(key)
        check_int64("expected_revision", expected_revision)
        return await self._worker.call(
            lambda ledger: ledger.delete_if(stored_key, expected_revision)
        )

    async def grant(self, ttl_ms: int) -> Lease:
        check_ttl(ttl_ms)
        return await self._worker.call(lambda ledger: ledger.grant(ttl_ms))

    async def keep_alive(self, lease: Lease) -> None:
        check_int64("lease", lease.id)
        await self._worker.call(lambda ledger: ledger.keep_alive(lease))

    async def revoke(self, lease: Lease) -> None:
        check_int64("lease", lease.id)
        await self._worker.call(lambda ledger: ledger.revoke(lease))

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        check_int64("from_revision", from_revision)
        return self._changes(prefix_bytes(prefix), from_revision)

    async def _changes(self, prefix: bytes, cursor: int) -> AsyncGenerator[Change, None]:
        with self._worker.ringing() as bell:
            while True:
                bell.hush()  # before looking: what comes after the look rings it
                page = await self._worker.call(
                    partial(Ledger.changes, prefix=prefix, cursor=cursor)
                )
                for change in page.changes:
                    yield change
                cursor = page.cursor
                if not page.more:
                    await bell.heard(WATCH_RECHECK_S)

    async def close(self) -> None:
        await self._worker.close()
