"""What etcd holds that no other form does: a history cut exactly, many entries, large ones, keys of
strangers, leases of seconds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aetcd.rpc import rpc_pb2 as pb

from kvstore.config import EtcdConfig
from kvstore.metadata import Compacted, Kind
from kvstore.metadata.bounds import VALUE_BYTES_MAX
from kvstore.metadata.etcd import EtcdMetadata, pages
from kvstore.metadata.etcd.endpoint import REPLY_BYTES_MAX
from tests.etcd import EtcdProcess, need_etcd


@pytest.fixture
def etcd(shared_etcd: EtcdProcess | None, patient: None) -> Iterator[EtcdProcess]:
    need_etcd()
    assert shared_etcd is not None
    yield shared_etcd
    shared_etcd.revoke_all()


@contextlib.asynccontextmanager
async def opened(etcd: EtcdProcess, cluster: str) -> Any:
    store = EtcdMetadata(EtcdConfig((etcd.url,), cluster))
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("last", [Kind.PUT, Kind.DELETE])
async def test_a_watch_from_just_before_the_cut_is_refused_and_from_the_cut_is_not(
    etcd: EtcdProcess, last: Kind
) -> None:
    async with opened(etcd, f"cut-{last.value}") as store:
        before = await store.put("k/a", b"1")
        if last is Kind.PUT:
            await store.put("k/a", b"2")
        else:
            await store.delete("k/a")  # etcd keeps no trace of it
        cut = etcd.compact()
        with pytest.raises(Compacted) as caught:
            await asyncio.wait_for(anext(store.watch("k/", before)), 10)
        assert caught.value.compact_revision == cut == before + 1
        async with contextlib.aclosing(store.watch("k/", cut)) as watch:
            await store.put("k/b", b"3")
            assert (await asyncio.wait_for(anext(watch), 10)).entry.key == "k/b"


async def test_a_list_takes_as_many_pages_as_it_has_to_and_shows_one_state(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_ENTRIES", 7)
    async with opened(etcd, "pages") as store, opened(etcd, "pages") as other:
        keys = [f"k/{number:03}" for number in range(50)]
        await asyncio.gather(*(store.put(key, b"0") for key in keys))
        entries, revision = await store.list("k/")
        assert [entry.key for entry in entries] == keys
        assert revision >= max(entry.revision for entry in entries)

        async def write() -> None:
            for number in range(200):
                key = keys[number % len(keys)]
                await other.put(key, str(number).encode())
                if number % 3 == 0:
                    await other.delete(keys[-1 - number % len(keys)])

        writing = asyncio.create_task(write())
        while not writing.done():
            entries, revision = await store.list("k/")
            replayed = await _state_at(store, "k/", revision)
            assert {entry.key: entry.revision for entry in entries} == replayed
        await writing


async def test_pages_whose_history_is_cut_between_them_are_read_anew(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_ENTRIES", 5)
    async with opened(etcd, "cut-pages") as store:
        for number in range(20):
            await store.put(f"k/{number:02}", b"")
        ask, asked = store._endpoints.ask, 0

        async def cutting(method: Any, request: Any) -> Any:
            nonlocal asked
            asked += 1
            reply = await ask(method, request)
            if asked == 2:
                etcd.call("KV", "Put", pb.PutRequest(key=b"stranger", value=b""))
                etcd.compact()
            return reply

        monkeypatch.setattr(store._endpoints, "ask", cutting)
        entries, _ = await store.list("k/")
        assert [entry.key for entry in entries] == [f"k/{number:02}" for number in range(20)]
        assert asked > 5, "it began anew"


async def test_values_that_fill_several_replies_are_listed_and_watched(etcd: EtcdProcess) -> None:
    async with opened(etcd, "large") as store:
        _, start = await store.list("")
        value = b"v" * VALUE_BYTES_MAX
        keys = [f"k/{number:02}" for number in range(3 * REPLY_BYTES_MAX // VALUE_BYTES_MAX)]
        for key in keys:
            await store.put(key, value)
        entries, _ = await store.list("k/")
        assert [entry.key for entry in entries] == keys
        assert all(entry.value == value for entry in entries)
        async with contextlib.aclosing(store.watch("k/", start)) as watch:
            seen = [await asyncio.wait_for(anext(watch), 10) for _ in keys]
        assert [change.entry.key for change in seen] == keys
        assert all(change.entry.value == value for change in seen)


async def test_a_lease_with_thousands_of_keys_ends_as_one_delete_of_each(etcd: EtcdProcess) -> None:
    long = "n" * 900
    async with opened(etcd, "many") as store:
        lease = await store.grant(60_000)
        keys = [f"k/{number:04}/{long}" for number in range(2_500)]
        for some in range(0, len(keys), 100):
            await asyncio.gather(
                *(store.put(key, b"", lease=lease.id) for key in keys[some : some + 100])
            )
        _, start = await store.list("j/")
        async with contextlib.aclosing(store.watch("k/", start)) as watch:
            await store.revoke(lease)
            seen = [await asyncio.wait_for(anext(watch), 10) for _ in keys]
        assert {change.kind for change in seen} == {Kind.DELETE}
        assert sorted(change.entry.key for change in seen) == keys
        assert len({change.revision for change in seen}) < len(keys), "they share revisions"


async def test_pools_of_two_names_see_nothing_of_each_other(etcd: EtcdProcess) -> None:
    async with opened(etcd, "pool") as one, opened(etcd, "pool-2") as two:
        _, start = await one.list("")
        await two.put("k", b"two")
        await one.put("k", b"one")
        assert (await one.get("k")).value == b"one"
        assert [entry.value for entry in (await two.list(""))[0]] == [b"two"]
        async with contextlib.aclosing(one.watch("", start)) as watch:
            assert (await asyncio.wait_for(anext(watch), 10)).entry.value == b"one"


async def test_keys_that_strangers_put_and_that_are_no_text_are_passed_over(
    etcd: EtcdProcess,
) -> None:
    async with opened(etcd, "strange") as store:
        _, start = await store.list("")
        etcd.call("KV", "Put", pb.PutRequest(key=b"moonpool/strange/\xff", value=b"x"))
        await store.put("k", b"")
        assert [entry.key for entry in (await store.list(""))[0]] == ["k"]
        async with contextlib.aclosing(store.watch("", start)) as watch:
            assert (await asyncio.wait_for(anext(watch), 10)).entry.key == "k"


async def test_who_gives_no_sign_of_life_is_gone_once_its_time_is_over(etcd: EtcdProcess) -> None:
    async with opened(etcd, "leases") as holder, opened(etcd, "leases") as other:
        assert (await holder.grant(2_000)).ttl_ms == 2_000
        lease = await holder.grant(5_000)
        start = await holder.put("nodes/a", b"", lease=lease.id)
        for _ in range(3):
            await asyncio.sleep(2.0)
            renewed = time.monotonic()
            await holder.keep_alive(lease)
        async with contextlib.aclosing(other.watch("nodes/", start)) as watch:
            gone = await asyncio.wait_for(anext(watch), 30)
        assert (gone.kind, gone.entry.key) == (Kind.DELETE, "nodes/a")
        assert time.monotonic() - renewed >= 5.0


async def test_a_lease_is_never_shorter_than_asked_for(etcd: EtcdProcess) -> None:
    async with opened(etcd, "round") as store:
        assert (await store.grant(2_001)).ttl_ms == 3_000
        assert (await store.grant(1)).ttl_ms >= 1_000


async def _state_at(store: EtcdMetadata, prefix: str, revision: int) -> dict[str, int]:
    """The keys under a prefix at a revision, as one range of etcd's own says."""
    asked = pb.RangeRequest(
        key=store._keys.inside(prefix.encode()),
        range_end=store._keys.end(prefix.encode()),
        revision=revision,
    )
    reply = await store._endpoints.first.kv.Range(asked)
    root = len(store._keys.root)
    return {one.key[root:].decode(): one.mod_revision for one in reply.kvs}
