"""Who is named: those whose lease stands, who were heard of lately, and of whom all is known."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.clock import SimClock
from kvstore.conductor import pool as module
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.pool import Pool
from kvstore.conductor.table import Table
from kvstore.conductor.tracked import Tracked
from kvstore.core.fingerprints import IN_DRAM
from kvstore.errors import Overloaded, Unavailable
from kvstore.limits import FOLLOW_SILENCE_SECONDS, SUSPECT_SECONDS
from kvstore.metadata import Compacted, Metadata, open_metadata
from kvstore.metadata.records import NodeRecord

RECORD = NodeRecord("a", 1, "127.0.0.1:1", {"dram": 1}, ("shm",), {}, "serving")


class Flaky:
    """Real metadata that answers no reader while it is broken, and then ends a watch."""

    def __init__(self, real: Metadata) -> None:
        self._real, self.broken, self.ended = real, None, False
        self.deaf = False  # its history is another: watches tell nothing of what is there

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def list(self, prefix: str) -> Any:
        if self.broken is not None:
            raise Unavailable("the metadata is away")
        return await self._real.list(prefix)

    async def watch(self, prefix: str, revision: int) -> Any:
        async for change in self._real.watch(prefix, revision):
            if self.broken is not None:
                self.ended = True
                raise self.broken
            if not self.deaf:
                yield change


class Rig:
    """A pool on real metadata, with followers that do only what the test says."""

    def __init__(self, metadata: Flaky, patch: pytest.MonkeyPatch) -> None:
        self.metadata, self.clock = metadata, SimClock(start=1_000.0)
        self.followed: list[tuple[str, str]] = []  # node, address
        self.heard: dict[str, Callable[[], None]] = {}

        async def follow(tracked: Tracked, address: str, heard: Any, *_: object) -> None:
            self.followed.append((tracked.node_id, address))
            self.heard[tracked.node_id] = heard
            await asyncio.Event().wait()

        patch.setattr(module, "follow", follow)
        self.pool = Pool(metadata, self.clock, random.Random(1))

    async def put(self, record: NodeRecord) -> None:
        await self.metadata.put(record.key(), record.encode())

    def knows(self, node: str) -> None:
        self.pool.table.begin(node)
        self.pool.table.finish(node)
        self.heard[node]()

    @property
    def named(self) -> list[str]:
        return [member.record.node_id for member in self.pool.named()]

    @property
    def suspect(self) -> list[str]:
        members = self.pool._members.items()
        return [name for name, member in members if member.lapsed is not None]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)


def in_a_pool(
    home: Path, patch: pytest.MonkeyPatch, work: Callable[[Rig], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        metadata = Flaky(open_metadata(os.fspath(home / "metadata.db")))
        rig = Rig(metadata, patch)
        keeping = asyncio.create_task(rig.pool.keep(await rig.pool.load()))
        try:
            await work(rig)
            rig.pool.check()
            assert not keeping.done()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await metadata.close()
        assert len(asyncio.all_tasks()) == 1, "a follower outlived its pool"

    asyncio.run(run())


def test_a_node_is_named_once_all_of_it_is_known_and_while_it_is_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        assert not rig.pool.approximate
        await rig.put(RECORD)
        await rig.until(lambda: rig.followed == [("a", "127.0.0.1:1")])
        assert rig.pool.approximate and not rig.named
        rig.knows("a")
        assert rig.named == ["a"] and not rig.pool.approximate
        await rig.clock.advance(FOLLOW_SILENCE_SECONDS)
        assert rig.named == ["a"]
        await rig.clock.advance(0.1)
        assert not rig.named, "it fell silent"
        assert rig.pool.approximate, "it may hold anything"
        rig.heard["a"]()
        assert rig.named == ["a"]

    in_a_pool(tmp_path, monkeypatch, work)


def test_a_node_that_serves_is_coming_and_not_away_until_all_of_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        await rig.put(RECORD)
        await rig.put(replace(RECORD, node_id="b"))
        await rig.until(lambda: len(rig.followed) == 2)
        rig.pool.table.begin("a")
        assert rig.pool.coming_ids() == ["a", "b"]
        rig.knows("a")
        assert rig.pool.coming_ids() == ["b"]
        await rig.clock.advance(FOLLOW_SILENCE_SECONDS + 0.1)
        assert not rig.named and rig.pool.coming_ids() == ["b"], "a fell silent"
        await rig.metadata.delete(replace(RECORD, node_id="b").key())
        await rig.until(lambda: rig.suspect == ["b"])
        assert not rig.pool.coming_ids()

    in_a_pool(tmp_path, monkeypatch, work)


def test_a_node_that_the_index_has_no_place_for_is_not_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        rig.pool.table = Table(PoolIndex(1, blocks_max=4))
        for record in (RECORD, replace(RECORD, node_id="b")):
            await rig.put(record)
        await rig.until(lambda: len(rig.followed) == 2)
        rig.knows("a")
        many = np.arange(1 << 16, dtype=np.uint64)
        for _ in range(2):  # it is tried again
            rig.pool.table.begin("b")
            with pytest.raises(Overloaded):
                rig.pool.table.add("b", many, np.full(len(many), IN_DRAM, np.uint8))
            assert rig.named == ["a"] and rig.pool.coming_ids() == ["b"]

    in_a_pool(tmp_path, monkeypatch, work)


def test_a_pool_that_is_swept_no_more_is_kept_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conductor ends with it, and is started again: else nothing would ever be forgotten."""

    def broken() -> bool:
        raise RuntimeError("a bug")

    async def run() -> None:
        metadata = Flaky(open_metadata(os.fspath(tmp_path / "metadata.db")))
        rig = Rig(metadata, monkeypatch)
        monkeypatch.setattr(rig.pool.table, "sweep", broken)
        keeping = asyncio.create_task(rig.pool.keep(await rig.pool.load()))
        await rig.clock.advance(2 * module.SWEEP_SECONDS)
        with pytest.raises(ExceptionGroup):
            await asyncio.wait_for(keeping, 30)
        await metadata.close()

    asyncio.run(run())


def test_a_node_whose_lease_is_gone_is_suspect_at_once_and_named_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        await rig.put(RECORD)
        await rig.until(lambda: "a" in rig.heard)
        rig.knows("a")
        await rig.metadata.delete(RECORD.key())
        await rig.until(lambda: not rig.named)
        assert "a" in rig.pool.table, "what it had stays known"
        await rig.clock.advance(SUSPECT_SECONDS - 5)
        rig.heard["a"]()
        assert not rig.named and not rig.pool.approximate
        await rig.put(RECORD)
        await rig.until(lambda: rig.named == ["a"])
        await rig.until(lambda: len(rig.followed) == 2)
        await rig.clock.advance(SUSPECT_SECONDS)
        assert "a" in rig.pool.table

    in_a_pool(tmp_path, monkeypatch, work)


def test_after_the_grace_period_a_node_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        await rig.put(RECORD)
        await rig.until(lambda: "a" in rig.heard)
        rig.knows("a")
        await rig.metadata.delete(RECORD.key())
        await rig.until(lambda: not rig.named)
        await rig.clock.advance(SUSPECT_SECONDS + 2)
        assert "a" not in rig.pool.table
        await rig.put(RECORD)
        await rig.until(lambda: len(rig.followed) == 2)
        assert rig.pool.approximate and not rig.named

    in_a_pool(tmp_path, monkeypatch, work)


def test_a_node_that_found_no_place_is_followed_once_another_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NODES_MAX", 2)
    other, gone, late = (replace(RECORD, node_id=name) for name in ("b", "gone", "late"))

    async def work(rig: Rig) -> None:
        for one in (RECORD, other, gone, late):
            await rig.put(one)
        await rig.metadata.delete(gone.key())
        await rig.metadata.delete(RECORD.key())
        await rig.until(lambda: rig.suspect == ["a"])
        assert [node for node, _ in rig.followed] == ["a", "b"]
        assert rig.pool.coming_ids() == ["b", "late"], "one that waits for its place is not away"
        await rig.clock.advance(SUSPECT_SECONDS + 2)
        await rig.until(lambda: len(rig.followed) == 3)
        assert rig.followed[-1][0] == "late"

    in_a_pool(tmp_path, monkeypatch, work)


def test_a_node_that_comes_back_elsewhere_or_in_a_new_epoch_is_followed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        await rig.put(RECORD)
        await rig.until(lambda: len(rig.followed) == 1)
        rig.knows("a")
        await rig.put(replace(RECORD, address="127.0.0.1:2"))
        await rig.until(lambda: rig.followed[-1] == ("a", "127.0.0.1:2"))
        await rig.put(replace(RECORD, address="127.0.0.1:2", epoch=2))
        await rig.until(lambda: len(rig.followed) == 3)
        assert rig.named == ["a"], "what it had stays until the new is known"
        await rig.put(replace(RECORD, address="127.0.0.1:2", epoch=2, state="draining"))
        await rig.put(replace(RECORD, node_id="b"))
        await rig.until(lambda: len(rig.followed) == 4)
        assert rig.followed[-1][0] == "b", "a drain is no reason to begin anew"

    in_a_pool(tmp_path, monkeypatch, work)


@pytest.mark.parametrize("error", [Unavailable("gone"), Compacted("too far back", 1)])
def test_after_a_watch_that_ended_the_records_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def work(rig: Rig) -> None:
        await rig.put(RECORD)
        await rig.until(lambda: "a" in rig.heard)
        rig.knows("a")
        rig.metadata.broken = error
        await rig.put(replace(RECORD, state="draining"))  # the watch sees no more than this
        await rig.until(lambda: rig.metadata.ended)
        await rig.clock.advance(2.0)
        rig.heard["a"]()
        assert rig.named == ["a"], "who is followed goes on being named"
        await rig.metadata.delete(RECORD.key())
        await rig.put(replace(RECORD, node_id="b"))
        rig.metadata.broken = None
        for _ in range(500):
            await rig.clock.advance(0.1)
            await asyncio.sleep(0.01)
            if "b" in rig.heard:
                break
        rig.heard["a"]()
        assert ("b", "127.0.0.1:1") in rig.followed and not rig.named

    in_a_pool(tmp_path, monkeypatch, work)


def test_what_no_watch_tells_is_read_anew_and_who_stayed_is_not_followed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.metadata.watching.WATCHED_SECONDS", (0.02, 0.03))

    async def work(rig: Rig) -> None:
        for name in "ab":
            await rig.put(replace(RECORD, node_id=name))
        while not {"a", "b"} <= rig.heard.keys():
            await rig.clock.advance(0.5)
        rig.metadata.deaf = True
        await rig.metadata.delete("nodes/b")
        await rig.put(replace(RECORD, node_id="c"))
        async with asyncio.timeout(30):
            while "c" not in rig.heard:
                await rig.clock.advance(0.1)
                await asyncio.sleep(0.01)
        assert rig.suspect == ["b"]
        assert [node for node, _ in rig.followed].count("a") == 1

    in_a_pool(tmp_path, monkeypatch, work)


def test_a_record_that_cannot_be_read_is_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rig: Rig) -> None:
        await rig.metadata.put("nodes/bad", b"{}")
        await rig.put(RECORD)
        await rig.until(lambda: "a" in rig.heard)
        assert [node for node, _ in rig.followed] == ["a"]

    in_a_pool(tmp_path, monkeypatch, work)
