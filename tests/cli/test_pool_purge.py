"""`moonpool purge --everywhere` and a node that drained and was not reached: whether it is gone."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli import pool_purge
from kvstore.cli.main import main
from kvstore.metadata import Metadata, open_metadata
from kvstore.metadata.records import NodeRecord


class Drained:
    """A node whose record says so, and at whose address every connection is ended at once."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.metadata, self._folder, self._capsys = folder / "pool.db", folder, capsys
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._record = NodeRecord("b", 1, self.address, {}, (), {}, "draining")
        self._in_metadata(lambda store: store.put(self._record.key(), self._record.encode()))

    def leaves(self) -> None:
        """Its record goes, as it does too when a node has been cut off from etcd for a lease."""
        self._in_metadata(lambda store: store.delete(self._record.key()))

    def ends(self) -> None:
        self.leaves()
        # Wakes who waits in `accept`, and refuses from then on.
        self._listening.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def and_once_it_is_asked(self, happens: Callable[[], None]) -> Iterator[None]:
        """The purge has seen its record by then."""

        def answer() -> None:
            self._listening.accept()[0].close()
            happens()
            try:
                while True:
                    self._listening.accept()[0].close()
            except OSError:
                self._listening.close()

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            yield
        finally:
            with suppress(OSError):  # it ended
                self._listening.shutdown(socket.SHUT_RDWR)
            answering.join()

    def purged(self) -> tuple[int, str, str]:
        """The exit code, and what is said on stdout and stderr."""
        where = ["--metadata", os.fspath(self.metadata), "--dir", os.fspath(self._folder)]
        code = main(["purge", "--namespace", "ab", "--everywhere", "--yes", *where])
        return code, *self._capsys.readouterr()

    def and_one_that_nobody_can_read(self) -> None:
        self._in_metadata(lambda store: store.put("nodes/bad", b"garbage"))

    def _in_metadata(self, ask: Callable[[Metadata], Coroutine[Any, Any, Any]]) -> None:
        async def run() -> None:
            store = open_metadata(os.fspath(self.metadata))
            try:
                await ask(store)
            finally:
                await store.close()

        asyncio.run(run())


@pytest.fixture
def drained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Drained:
    return Drained(tmp_path, capsys)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of who does not leave it is known in a moment."""
    monkeypatch.setattr(pool_purge, "_LEAVES_SECONDS", 1.0)


def test_whose_record_is_gone_and_who_refuses_connections_has_left(drained: Drained) -> None:
    with drained.and_once_it_is_asked(drained.ends):
        code, out, err = drained.purged()
    assert code == 0 and out == "purged namespace ab: 0 blocks dropped at 0 of 0 nodes\n"
    assert err == f"moonpool: {drained.address} has left: purge it there when it is back\n"


def test_whose_record_is_gone_and_who_takes_connections_may_serve_on_and_was_not_purged(
    drained: Drained, hurried: None
) -> None:
    with drained.and_once_it_is_asked(drained.leaves):
        code, out, err = drained.purged()
    assert code == 1 and out == "purged namespace ab: 0 blocks dropped at 0 of 1 nodes\n"
    assert f"{drained.address} was not purged: " in err and "has left" not in err


def test_where_the_metadata_cannot_be_asked_any_more_nobody_has_left_and_all_is_said_still(
    drained: Drained, hurried: None
) -> None:
    with drained.and_once_it_is_asked(lambda: drained.metadata.unlink()):
        code, out, err = drained.purged()
    assert code == 1 and out == "purged namespace ab: 0 blocks dropped at 0 of 1 nodes\n"
    assert f"{drained.address} was not purged: " in err and "has left" not in err


def test_a_node_whose_record_is_bad_is_named_and_keeps_none_of_the_others_from_being_asked(
    drained: Drained,
) -> None:
    drained.and_one_that_nobody_can_read()
    with drained.and_once_it_is_asked(drained.ends):
        code, out, err = drained.purged()
    assert code == 1 and out == "purged namespace ab: 0 blocks dropped at 0 of 1 nodes\n"
    assert f"{drained.address} has left" in err, "it was asked"
    assert "moonpool: a node whose record is bad was not purged: nodes/bad: not JSON\n" in err
