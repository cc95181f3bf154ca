"""An index that is gone or damaged: moved aside, and made anew as an empty one that is marked so.

The mark is there before the new index is, and goes when that has been filled from the blocks
themselves. So a start that was cut off in between is repeated, and an index that is empty because
nothing was ever stored is not taken for a lost one, nor a lost one for that.
"""

from __future__ import annotations

import logging
from pathlib import Path

from kvstore.disk.files import sync_directory
from kvstore.disk.ledger import IndexDamaged, Ledger, let_owner_in

log = logging.getLogger(__name__)


class LostIndex:
    """The mark, in the directory of one path."""

    def __init__(self, path: Path) -> None:
        self._path, self._mark = path, path / "index.lost"

    @property
    def marked(self) -> bool:
        return self._mark.exists()

    def mark(self) -> None:
        self._mark.touch(0o600)
        sync_directory(self._path)

    def unmark(self) -> None:
        self._mark.unlink()
        sync_directory(self._path)


def opened_index(path: Path, size_bytes: int, *, known: bool) -> Ledger:
    """The index of a path; `known` says that the path has been in use, so that one is missed."""
    index = path / "index"
    try:
        if known and not index.exists():
            raise IndexDamaged("it is gone")
        if index.exists():
            let_owner_in(index)
            if not begun(index):
                raise IndexDamaged("its file is gone or empty")
        return Ledger(index, size_bytes)
    except IndexDamaged as why:
        if known:
            LostIndex(path).mark()
        aside = _moved_aside(index)
        where = f"; what is there was moved to {aside}, remove it when you like" if aside else ""
        log.warning(
            "node.ssd %r: the index cannot be read (%s)%s. It is made anew from the heads of the "
            "blocks, which takes a read for each place where one may be",
            *(str(path), why, where),
        )
    return Ledger(index, size_bytes)


def begun(index: Path) -> bool:
    """Whether LMDB has a file there: where it has none it would begin a new one unasked."""
    file = index / "data.mdb"
    return file.exists() and file.stat().st_size > 0


def _moved_aside(index: Path) -> Path | None:
    if not index.exists():
        return None
    number = 0
    while (aside := index.with_name(f"index.damaged-{number}")).exists():
        number += 1
    index.rename(aside)
    sync_directory(index.parent)
    return aside
