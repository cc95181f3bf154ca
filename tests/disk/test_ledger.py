"""The index's directory: its owner can enter it, whoever that is."""

from __future__ import annotations

import stat
from pathlib import Path

from kvstore.disk.ledger import Ledger
from kvstore.disk.lost_index import opened_index
from kvstore.limits import KiB

SIZE = 256 * KiB
ROOT_ALONE = 0o600  # as LMDB makes it, with the mode of its files: one who is not root cannot enter


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_index_can_be_entered_by_its_owner_and_by_nobody_else(tmp_path: Path) -> None:
    Ledger(tmp_path / "index", SIZE).close()
    assert mode(tmp_path / "index") == 0o700
    assert {mode(file) for file in (tmp_path / "index").iterdir()} == {0o600}


def test_one_that_only_root_could_enter_is_opened_to_its_owner_with_what_it_has(
    tmp_path: Path,
) -> None:
    made = Ledger(tmp_path / "index", SIZE)
    made.commit({b"key": b"value"}, ())
    made.close()
    (tmp_path / "index").chmod(ROOT_ALONE)
    found = opened_index(tmp_path, SIZE, known=True)
    assert list(found.scan()) == [(b"key", b"value")]
    assert mode(tmp_path / "index") == 0o700
    found.close()


def test_one_that_was_never_finished_and_only_root_could_enter_is_made_anew(
    tmp_path: Path,
) -> None:
    Ledger(tmp_path / "index.new", SIZE).close()
    (tmp_path / "index.new" / "data.mdb").write_bytes(bytes(SIZE))
    (tmp_path / "index.new").chmod(ROOT_ALONE)
    Ledger(tmp_path / "index", SIZE).close()
    assert mode(tmp_path / "index") == 0o700
    assert not (tmp_path / "index.new").exists()
