"""Each SQLite failure as the error that tells the caller what to do about it, naming the file.

SQLite's primary result code says enough to tell "wait" from "repair" from "our bug".
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from kvstore.errors import ConfigError, InvariantError, KVStoreError, Unavailable

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DENIED = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_AUTH,
}
_NOT_NOW = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT}


class Busy(Unavailable):
    """Another process holds the write lock. Nothing was done; try again."""


def meaning(error: sqlite3.Error, path: Path, bytes_max: int) -> KVStoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code in _BUSY:
        return Busy(f"{path} is locked by another process")
    if code in _DAMAGED:
        return damaged(path, str(error))
    if code in _DENIED:
        return ConfigError(f"{path}: {error}; let this user read and write the file and its folder")
    if code == sqlite3.SQLITE_FULL:
        return Unavailable(f"{path} has reached {bytes_max} bytes, or its disk is full")
    if code in _NOT_NOW:
        return Unavailable(f"{path}: {error}")
    return InvariantError(f"{path}: {error}")


def damaged(path: Path, verdict: str) -> ConfigError:
    reason = " ".join(verdict.split())  # SQLite's check answers in lines
    return ConfigError(
        f"{path} is damaged or no SQLite file ({reason}); stop all that use it, move it away and "
        "start again: nodes and namespaces register anew, tenants must be added again"
    )
