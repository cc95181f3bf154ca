"""One SQLite file, opened only if it is ours, whose every failure names the file and the fix.

The file proves itself by SQLite's application id and version before anything is written to it.
Transactions are SQLite's own, so a process killed inside one leaves no trace of it. `Busy` is
raised at once, with nothing done; who wants to wait tries again (see `kvstore.metadata.worker`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvstore.errors import ConfigError
from kvstore.limits import MiB
from kvstore.metadata.sqlite_failure import damaged, meaning

APPLICATION_ID = 0x4D50_4D44  # "MPMD"
SCHEMA_VERSION = 1
FILE_BYTES_MAX = 256 * MiB
PAGE_BYTES = 4_096
SQLITE_NEEDED = (3, 37, 0)  # STRICT tables and RETURNING

SCHEMA = """
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL,
    compacted INTEGER NOT NULL, change_bytes INTEGER NOT NULL, boot TEXT NOT NULL) STRICT;
CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL,
    lease INTEGER NOT NULL) STRICT;
CREATE INDEX entries_by_lease ON entries (lease, key) WHERE lease <> 0;
CREATE TABLE leases (id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL, deadline REAL NOT NULL)
    STRICT;
CREATE INDEX leases_by_deadline ON leases (deadline);
CREATE TABLE changes (revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, key BLOB NOT NULL,
    value BLOB NOT NULL, lease INTEGER NOT NULL) STRICT;
INSERT INTO head VALUES (1, 0, 0, 0, '')
"""


class SqliteFile:
    """Belongs to the thread that opened it. Opening raises `Busy` like everything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if sqlite3.sqlite_version_info < SQLITE_NEEDED:
            raise ConfigError(f"SQLite is {sqlite3.sqlite_version}; 3.37 or newer is needed")
        self._create()
        self._identity = self._inode()
        with self._explained():
            uri = f"file:{quote(str(path))}?mode=rw"  # rw: never create, that was done with 0600
            self._db = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)
        try:
            with self._explained():
                self._prove()
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _create(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mknod, not open: closing a descriptor would drop the locks that another store in this
            # process may hold on the file.
            with contextlib.suppress(FileExistsError):
                os.mknod(self.path, 0o600)
        except OSError as error:
            raise ConfigError(f"metadata file {self.path} cannot be made: {error}") from error
        if not self.path.is_file():
            raise ConfigError(f"metadata path {self.path} is not a file; give the path of a file")

    def _prove(self) -> None:
        """Refuse, before writing anything, a file that is damaged or somebody else's."""
        with self.snapshot():  # of one state: another process may fill the file at this moment
            ((application,),) = self.rows("PRAGMA application_id")
            ((version,),) = self.rows("PRAGMA user_version")
            ((tables,),) = self.rows("SELECT count(*) FROM sqlite_master")
        if (application, version, tables) == (0, 0, 0):
            if 0 < self.path.stat().st_size < 512:  # which SQLite would take for empty
                raise damaged(self.path, "too short")
            return  # empty: ours to fill
        if application != APPLICATION_ID:
            raise ConfigError(
                f"{self.path} is an SQLite file of another program; give the metadata its own file"
            )
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"{self.path} has metadata version {version}, this Moonpool reads "
                f"{SCHEMA_VERSION}; run the version that wrote it, or give a new file"
            )
        ((verdict,),) = self.rows("PRAGMA quick_check(1)")
        if verdict != "ok":
            raise damaged(self.path, verdict)

    def _prepare(self) -> None:
        ((mode,),) = self.rows("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise ConfigError(
                f"{self.path} cannot use SQLite's WAL mode here; put it on a local file system"
            )
        self.rows("PRAGMA synchronous = FULL")  # a put that returned survives a power cut
        self.rows(f"PRAGMA max_page_count = {FILE_BYTES_MAX // PAGE_BYTES}")
        self.rows(f"PRAGMA journal_size_limit = {4 * MiB}")
        with self.transaction():
            if self.rows("SELECT 1 FROM sqlite_master LIMIT 1"):
                return  # made before, or by another process just now
            for statement in SCHEMA.split(";"):
                self.rows(statement)
            self.rows(f"PRAGMA application_id = {APPLICATION_ID}")
            self.rows(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(statement, values).fetchall()

    def each(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Row by row, for a reader that stops when it has enough."""
        with contextlib.closing(self._db.execute(statement, values)) as cursor:
            yield from cursor

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see one state. Needs no lock: a stopped writer does not stop readers."""
        yield from self._between("BEGIN DEFERRED")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, after every earlier transaction of any process."""
        yield from self._between("BEGIN IMMEDIATE")

    def _between(self, begin: str) -> Iterator[None]:
        self.check_in_place()
        with self._explained():
            self.rows(begin)
            try:
                yield
                self.rows("COMMIT")
            finally:
                if self._db.in_transaction:
                    self.rows("ROLLBACK")

    def version(self) -> tuple[int, int]:
        """Differs from an earlier answer if any process has changed the file since."""
        self.check_in_place()
        with self._explained():
            ((others,),) = self.rows("PRAGMA data_version")  # does not count our own changes
            return others, self._db.total_changes

    def check_in_place(self) -> None:
        """A removed file still opens for those who hold it; they would talk to themselves."""
        if self._inode() != self._identity:
            raise ConfigError(
                f"{self.path} was removed or replaced while in use; restart all that use it"
            )

    def _inode(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise meaning(error, self.path, FILE_BYTES_MAX) from error
