"""What every form promises to those who watch: all changes, in order, once, or `Compacted`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from kvstore.metadata import BadKey, Change, Compacted, Kind, StoreClosed

PUT, DELETE = Kind.PUT, Kind.DELETE


async def take(watch: Any, count: int) -> list[Change]:
    return [await asyncio.wait_for(anext(watch), 30) for _ in range(count)]


def told(changes: list[Change]) -> list[tuple[Kind, str, bytes]]:
    return [(change.kind, change.entry.key, change.entry.value) for change in changes]


async def test_a_watch_from_a_revision_sees_every_later_change(form: Any) -> None:
    store = form.open()
    await store.put("k/a", b"before")
    start = await store.put("k/b", b"start")
    await store.put("k/a", b"1")
    await store.delete("k/b")
    async with contextlib.aclosing(store.watch("k/", start)) as watch:
        seen = await take(watch, 2)
        await form.open().put("k/c", b"live")
        seen += await take(watch, 1)
    assert told(seen) == [(PUT, "k/a", b"1"), (DELETE, "k/b", b""), (PUT, "k/c", b"live")]
    assert [change.revision for change in seen] == sorted({change.revision for change in seen})
    assert all(change.entry.revision == change.revision > start for change in seen)


async def test_a_watch_sees_only_its_prefix(form: Any) -> None:
    store, start = form.open(), await form.start()
    async with contextlib.aclosing(store.watch("k/", start)) as watch:
        for key in ("k", "k0", "k/1", "j/2", "k/3"):
            await store.put(key, b"")
        assert [change.entry.key for change in await take(watch, 2)] == ["k/1", "k/3"]


async def test_a_watch_of_the_empty_prefix_sees_all(form: Any) -> None:
    store, start = form.open(), await form.start()
    async with contextlib.aclosing(store.watch("", start)) as watch:
        for key in ("\x00", "a", "\U0010ffff"):
            await store.put(key, b"")
        assert [change.entry.key for change in await take(watch, 3)] == ["\x00", "a", "\U0010ffff"]


async def test_the_end_of_a_lease_is_seen_as_deletes(form: Any) -> None:
    holder, other = form.open(), form.open()
    lease = await holder.grant(form.ttl_ms)
    await holder.put("nodes/a", b"", lease=lease.id)
    start = await holder.put("nodes/b", b"", lease=lease.id)
    async with contextlib.aclosing(other.watch("nodes/", start)) as watch:
        first = asyncio.create_task(take(watch, 2))
        await form.pass_time(lease.ttl_ms / 1_000 + 1)
        seen = await first
    assert sorted(told(seen), key=str) == [(DELETE, "nodes/a", b""), (DELETE, "nodes/b", b"")]
    assert all(change.revision > start for change in seen)


async def test_a_watch_from_where_the_store_never_was_says_that_changes_are_lost(
    form: Any,
) -> None:
    store = form.open()
    now = await store.put("k", b"now")
    with pytest.raises(Compacted) as caught:
        await anext(store.watch("k", now + 1))
    assert caught.value.compact_revision == now, "to list again is to know what there is"


async def test_a_delete_that_was_the_last_to_be_compacted_is_not_passed_over(form: Any) -> None:
    store = form.open()
    put = await store.put("k/a", b"1")
    await store.delete("k/a")
    await form.compact()
    with pytest.raises(Compacted):
        await anext(store.watch("k/", put))


async def test_a_revision_compacted_away_is_named_and_a_list_goes_on_from_there(form: Any) -> None:
    store = form.open()
    early = await store.put("k/a", b"1")
    await store.put("k/a", b"2")
    await form.compact()
    with pytest.raises(Compacted) as caught:
        await anext(store.watch("k/", early))
    assert caught.value.compact_revision > early
    entries, revision = await store.list("k/")
    assert [entry.value for entry in entries] == [b"2"]
    async with contextlib.aclosing(store.watch("k/", revision)) as watch:
        await store.put("k/a", b"3")
        assert told(await take(watch, 1)) == [(PUT, "k/a", b"3")]


async def test_a_live_watch_is_not_compacted_by_changes_it_does_not_match(form: Any) -> None:
    store = form.open()
    start = await store.put("k/a", b"1")
    async with contextlib.aclosing(store.watch("k/", start)) as watch:
        await store.put("k/a", b"2")
        seen = await take(watch, 1)  # so its stream has begun
        waiting = asyncio.create_task(take(watch, 1))
        for _ in range(3):
            await store.put("other", b"")
        for _ in range(5):  # the watch moves along: what it asks stands in one line with these
            await store.get("other")
        await form.compact()
        await store.put("k/a", b"3")
        seen += await waiting
    assert told(seen) == [(PUT, "k/a", b"2"), (PUT, "k/a", b"3")]


async def test_list_then_watch_loses_and_repeats_nothing_while_others_write(form: Any) -> None:
    reader, writers = form.open(), [form.open(), form.open()]

    async def write(store: Any, name: int) -> None:
        for number in range(40):
            await store.put(f"k/{name}/{number % 7}", str(number).encode())
            if number % 5 == 0:
                await store.delete(f"k/{name}/{number % 7}")

    writing = asyncio.gather(*(write(store, name) for name, store in enumerate(writers)))
    await asyncio.sleep(0.01)
    entries, revision = await reader.list("k/")
    model = {entry.key: entry.value for entry in entries}
    await writing
    final, end = await reader.list("k/")
    last = revision
    async with contextlib.aclosing(reader.watch("k/", revision)) as watch:
        while last < end:
            change = (await take(watch, 1))[0]
            assert change.revision > last
            last = change.revision
            apply(model, change)
    assert model == {entry.key: entry.value for entry in final}


async def test_many_watches_see_the_same_changes(form: Any) -> None:
    stores, start = [form.open(), form.open()], await form.start()
    watches = [store.watch("k/", start) for store in stores * 5]
    taking = [asyncio.create_task(take(watch, 20)) for watch in watches]
    for number in range(20):
        await stores[number % 2].put(f"k/{number % 3}", str(number).encode())
    seen = await asyncio.gather(*taking)
    assert all(changes == seen[0] for changes in seen)
    for watch in watches:
        await watch.aclose()


async def test_a_watch_ends_with_its_client(form: Any) -> None:
    store, start = form.open(), await form.start()
    waiting = asyncio.create_task(take(store.watch("k/", start), 1))
    await asyncio.sleep(0.02)
    await store.close()
    with pytest.raises(StoreClosed):
        await waiting


async def test_a_cancelled_watch_leaves_the_store_usable(form: Any) -> None:
    store, start = form.open(), await form.start()
    waiting = asyncio.create_task(anext(store.watch("k/", start)))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await store.put("k/a", b"") >= 1


async def test_a_watch_stops_when_cancelled_at_any_moment(form: Any) -> None:
    store, writer, start = form.open(), form.open(), await form.start()

    async def follow() -> None:
        async with contextlib.aclosing(store.watch("k/", start)) as watch:
            async for _ in watch:
                pass

    for number in range(30):
        following = asyncio.create_task(follow())
        await asyncio.wait({asyncio.create_task(writer.put("k/a", b""))})
        await asyncio.sleep(number / 10_000)
        following.cancel()
        done, _ = await asyncio.wait({following}, timeout=30)
        assert done and following.cancelled()


async def test_a_prefix_that_no_key_could_have_is_refused(form: Any) -> None:
    store = form.open()
    with pytest.raises(BadKey):
        store.watch("\ud800", 0)
    with pytest.raises(BadKey):
        await store.list("\ud800")


def apply(model: dict[str, bytes], change: Change) -> None:
    if change.kind is PUT:
        model[change.entry.key] = change.entry.value
    else:
        del model[change.entry.key]  # a delete always follows a put
