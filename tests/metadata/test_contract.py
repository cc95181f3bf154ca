"""What every form of metadata promises of its entries, as its callers see them."""

from __future__ import annotations

import asyncio
from typing import Any


async def test_a_key_nobody_put_is_none(form: Any) -> None:
    assert await form.open().get("nodes/a") is None


async def test_what_one_client_puts_every_client_gets(form: Any) -> None:
    one, other = form.open(), form.open()
    revision = await one.put("nodes/a", b"\x00\xff")
    entry = await other.get("nodes/a")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision, entry.lease) == (
        "nodes/a",
        b"\x00\xff",
        revision,
        0,
    )


async def test_every_put_has_a_greater_revision(form: Any) -> None:
    one, other = form.open(), form.open()
    revisions = [await store.put("k", b"same") for store in (one, other, one, other)]
    assert revisions == sorted(set(revisions))
    assert revisions[0] >= 1


async def test_a_list_has_the_keys_of_the_prefix_in_order(form: Any) -> None:
    store = form.open()
    inside = ["nodes/", "nodes/a", "nodes/b", "nodes/b/1", "nodes/é"]
    for key in [*reversed(inside), "nodes0", "node"]:
        await store.put(key, key.encode())
    entries, revision = await store.list("nodes/")
    assert [entry.key for entry in entries] == inside
    assert [entry.value.decode() for entry in entries] == [entry.key for entry in entries]
    assert revision == max(entry.revision for entry in (await store.list(""))[0])


async def test_a_list_of_nothing_still_has_its_revision(form: Any) -> None:
    store = form.open()
    put = await store.put("other", b"")
    assert await store.list("nodes/") == ([], put)


async def test_put_if_0_makes_only_what_does_not_exist(form: Any) -> None:
    store = form.open()
    first = await store.put_if("k", b"first", expected_revision=0)
    assert first is not None
    assert await store.put_if("k", b"second", expected_revision=0) is None
    assert (await store.get("k")).value == b"first"


async def test_put_if_replaces_only_the_expected_revision(form: Any) -> None:
    store = form.open()
    old = await store.put("k", b"old")
    new = await store.put_if("k", b"new", expected_revision=old)
    assert new > old
    assert await store.put_if("k", b"late", expected_revision=old) is None
    assert (await store.get("k")).revision == new


async def test_of_many_racers_exactly_one_wins(form: Any) -> None:
    stores = [form.open() for _ in range(4)]
    races = [
        store.put_if("leader", str(number).encode(), expected_revision=0)
        for number, store in enumerate(stores * 5)
    ]
    won = [revision for revision in await asyncio.gather(*races) if revision is not None]
    assert len(won) == 1
    assert (await stores[0].get("leader")).revision == won[0]


async def test_counting_with_put_if_loses_no_count(form: Any) -> None:
    async def count(store: Any) -> None:
        for _ in range(10):
            while True:
                entry = await store.get("count")
                value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
                new = str(value + 1).encode()
                if await store.put_if("count", new, expected_revision=revision):
                    break

    await asyncio.gather(*(count(form.open()) for _ in range(3)))
    assert (await form.open().get("count")).value == b"30"


async def test_a_deleted_key_is_gone_and_can_be_made_again(form: Any) -> None:
    store = form.open()
    await store.put("k", b"v")
    assert await store.delete("k") is True
    assert await store.get("k") is None
    assert await store.put_if("k", b"again", expected_revision=0) is not None


async def test_deleting_nothing_changes_nothing(form: Any) -> None:
    store = form.open()
    before = await store.put("other", b"")
    assert await store.delete("k") is False
    assert await store.delete_if("k", expected_revision=before) is False
    assert await store.delete_if("k", expected_revision=0) is False
    assert (await store.list(""))[1] == before


async def test_delete_if_deletes_only_the_expected_revision(form: Any) -> None:
    store = form.open()
    old = await store.put("k", b"old")
    new = await store.put("k", b"new")
    assert await store.delete_if("k", expected_revision=old) is False
    assert await store.delete_if("k", expected_revision=new) is True
    assert await store.get("k") is None
