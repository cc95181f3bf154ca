"""Every change in order with nothing left out, back to a bound in number and in bytes.

Each change takes the next revision and exactly one row, so the rows kept are those numbered
`compacted` + 1 to `revision`, and the oldest can be dropped without a search. Each append drops
what exceeds the bound, so the log never needs tidying.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.limits import MiB
from kvstore.metadata.bounds import prefix_end
from kvstore.metadata.protocol import Change, Compacted, Entry, Kind
from kvstore.metadata.sqlite_file import FILE_BYTES_MAX, SqliteFile

CHANGES_KEPT = 16_384  # a watcher may fall this far behind before it has to list again
CHANGE_BYTES_KEPT = 32 * MiB
PAGE_CHANGES_MAX = 256  # what a watch holds in memory at once
PAGE_BYTES_MAX = 4 * MiB

assert CHANGE_BYTES_KEPT * 2 < FILE_BYTES_MAX  # the log must leave room for what it is about


@dataclass(frozen=True, slots=True)
class Page:
    changes: list[Change]
    cursor: int  # the revision to go on from
    more: bool  # cut short by its own limit: ask again without waiting


class ChangeLog:
    """Works inside the transaction or snapshot of its caller."""

    def __init__(self, file: SqliteFile, changes_kept: int) -> None:
        self._file = file
        self._changes_kept = max(1, changes_kept)

    def append(self, kind: Kind, key: bytes, value: bytes, lease: int) -> int:
        ((revision, compacted, size),) = self._file.rows(
            "UPDATE head SET revision = revision + 1, change_bytes = change_bytes + ? "
            "RETURNING revision, compacted, change_bytes",
            len(key) + len(value),
        )
        self._file.rows(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?)", revision, kind.value, key, value, lease
        )
        while revision - compacted > self._changes_kept or size > CHANGE_BYTES_KEPT:
            compacted += 1
            ((dropped,),) = self._file.rows(
                "DELETE FROM changes WHERE revision = ? RETURNING length(key) + length(value)",
                compacted,
            )
            size -= dropped
            self._file.rows("UPDATE head SET compacted = ?, change_bytes = ?", compacted, size)
        return int(revision)

    def page(self, prefix: bytes, cursor: int) -> Page:
        ((head, compacted),) = self._file.rows("SELECT revision, compacted FROM head")
        if cursor < compacted:
            raise Compacted(
                f"changes are kept from {compacted + 1} on, and {cursor + 1} was asked; list again",
                compacted,
            )
        if cursor > head:
            raise Compacted(f"the store is at {head} and never was at {cursor}; list again", head)
        changes: list[Change] = []
        size = 0
        for revision, kind, key, value, lease in self._file.each(
            "SELECT revision, kind, key, value, lease FROM changes "
            "WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision",
            *(cursor, prefix, prefix_end(prefix)),
        ):
            entry = stored_entry(key, value, revision, lease)
            changes.append(Change(Kind(kind), entry, revision))
            size += len(key) + len(value)
            if len(changes) >= PAGE_CHANGES_MAX or size >= PAGE_BYTES_MAX:
                break
        else:
            return Page(changes, head, more=False)
        return Page(changes, changes[-1].revision, more=True)


def stored_entry(key: bytes, value: bytes, revision: int, lease: int) -> Entry:
    return Entry(key.decode(), value, revision, lease)
