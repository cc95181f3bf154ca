"""The SQLite file: private, named by its URL, and refused when it is not ours or not whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from kvstore.errors import ConfigError
from kvstore.metadata import open_metadata
from kvstore.metadata.sqlite_failure import Busy
from kvstore.metadata.sqlite_file import SqliteFile


def raw(path: Path, statement: str) -> list[Any]:
    """Behind the store's back."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        return database.execute(statement).fetchall()
    finally:
        database.close()


async def test_the_file_and_its_folder_are_private(tmp_path: Path) -> None:
    store = open_metadata(str(tmp_path / "state" / "metadata.db"))
    await store.put("tenants/a", b"secret")
    for path in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    await store.close()


async def test_what_was_put_is_there_after_all_closed(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    revision = await store.put("k", b"v")
    await store.close()
    again = open_metadata(f"sqlite://{path}")
    entry = await again.get("k")
    assert entry is not None and (entry.value, entry.revision) == (b"v", revision)
    assert await again.put("k", b"w") > revision
    await again.close()


@pytest.mark.parametrize("name", ["with space.db", "100%.db", "what?#.db", "é.db"])
async def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    store = open_metadata(str(tmp_path / name))
    await store.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "url",
    ["", "etcd://host:2379", "sqlite://host/path", "sqlite:x", ":memory:", "sqlite:///", "a/"],
)
def test_a_url_of_no_form_is_told_the_forms(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sqlite:///"):
        open_metadata(url)


@pytest.mark.parametrize("content", [b"x", b"not a database " * 1_000, b"SQLite format 3\0" + b"x"])
def test_a_file_that_is_no_database_is_named_with_the_fix(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"metadata\.db is damaged.*move it away"):
        open_metadata(str(path))
    assert path.read_bytes() == content


async def test_a_damaged_database_is_named_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = open_metadata(str(path))
    for number in range(50):
        await store.put(f"k/{number}", bytes(2_000))
    await store.close()
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(os.urandom(60_000))
    with pytest.raises(ConfigError, match=r"metadata\.db is damaged.*move it away"):
        open_metadata(str(path))


def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    raw(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"other\.db is an SQLite file of another program"):
        open_metadata(str(path))
    assert path.read_bytes() == before


def test_a_file_that_another_process_fills_while_it_is_read_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.db"
    rows, tried = SqliteFile.rows, []

    def read_while_another_opens(
        self: SqliteFile, statement: str, *values: Any
    ) -> list[tuple[Any, ...]]:
        answer = rows(self, statement, *values)
        if statement == "PRAGMA application_id" and not tried:
            tried.append(statement)
            with contextlib.suppress(Busy):  # it waits for us: that will do too
                SqliteFile(path).close()
        return answer

    monkeypatch.setattr(SqliteFile, "rows", read_while_another_opens)
    SqliteFile(path).close()
    assert tried


async def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await open_metadata(str(path)).close()
    raw(path, "PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="version 99"):
        open_metadata(str(path))


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file"):
        open_metadata(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        open_metadata(str(tmp_path / "file" / "metadata.db"))


async def test_a_file_removed_while_in_use_fails_calls_and_watches(tmp_path: Path) -> None:
    store = open_metadata(str(tmp_path / "metadata.db"))
    waiting = asyncio.create_task(anext(store.watch("k/", 0)))
    await asyncio.sleep(0.02)
    (tmp_path / "metadata.db").unlink()
    with pytest.raises(ConfigError, match="removed or replaced"):
        await asyncio.wait_for(waiting, 30)
    with pytest.raises(ConfigError, match="removed or replaced"):
        await store.put("k/a", b"")
    await store.close()
