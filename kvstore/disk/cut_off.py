"""The files of a first start that was cut off while it took room: none is in the way of the next.

A layout that has no place for them may follow, as nothing was ever stored in them: there is no
header, which is written last, and no index that tells of a block. Where there may be one, no file
goes.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from kvstore.disk.header import Header
from kvstore.disk.ledger import IndexDamaged, Ledger, let_owner_in
from kvstore.disk.lost_index import LostIndex, begun

_DATA_NAME = re.compile(r"blocks-(\d{5}|[1-9]\d{5,})")  # as `data_path` writes it


def remove_cut_off(path: Path, header: Header) -> None:
    """Of a directory that is locked and has no header: what `header` is to be has no place for."""
    odd = [one for one in path.iterdir() if _has_no_place(one, header)]
    if odd and _nothing_stored(path):
        for one in odd:
            one.unlink()


def _has_no_place(file: Path, header: Header) -> bool:
    named = _DATA_NAME.fullmatch(file.name)
    if not named:
        return False  # not a node's
    return int(named[1]) >= header.files or file.stat().st_size > header.file_bytes


def _nothing_stored(path: Path) -> bool:
    """Only if that is known: a damaged index may have told of blocks."""
    index = path / "index"
    if LostIndex(path).marked:
        return False
    if not index.exists():
        return True
    let_owner_in(index)
    if not begun(index):
        return False
    try:
        with closing(Ledger(index, 0)) as ledger:
            return ledger.empty
    except IndexDamaged:
        return False
