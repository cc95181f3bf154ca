"""What every form of metadata promises, as its callers see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore.errors import Invalid
from kvstore.metadata import BadKey, BadValue, LeaseLost, StoreClosed
from kvstore.metadata.bounds import KEY_BYTES_MAX, LEASE_MS_MAX, VALUE_BYTES_MAX


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


async def test_the_keys_of_a_lease_vanish_when_its_time_is_over(form: Any) -> None:
    holder, other = form.open(), form.open()
    lease = await holder.grant(5_000)
    await holder.put("nodes/a", b"", lease=lease.id)
    await holder.put("kept", b"")
    assert (await other.get("nodes/a")).lease == lease.id
    await form.pass_time(lease.ttl_ms / 1_000 - 1)
    assert await other.get("nodes/a") is not None
    await form.pass_time(2)
    assert await other.get("nodes/a") is None
    assert [entry.key for entry in (await other.list(""))[0]] == ["kept"]


async def test_a_lease_kept_alive_outlives_its_ttl(form: Any) -> None:
    store = form.open()
    lease = await store.grant(5_000)
    await store.put("nodes/a", b"", lease=lease.id)
    for _ in range(4):
        await form.pass_time(lease.ttl_ms / 1_000 - 2)
        await store.keep_alive(lease)
    assert await store.get("nodes/a") is not None


async def test_any_client_may_keep_a_lease_alive(form: Any) -> None:
    lease = await form.open().grant(5_000)
    await form.open().keep_alive(lease)


async def test_a_lease_that_ended_never_comes_back(form: Any) -> None:
    store = form.open()
    lease = await store.grant(5_000)
    await store.put("nodes/a", b"", lease=lease.id)
    await form.pass_time(lease.ttl_ms / 1_000 + 1)
    with pytest.raises(LeaseLost, match=str(lease.id)):
        await store.keep_alive(lease)
    with pytest.raises(LeaseLost):
        await store.put("nodes/a", b"", lease=lease.id)
    with pytest.raises(LeaseLost):
        await store.put_if("nodes/a", b"", expected_revision=0, lease=lease.id)
    assert await store.get("nodes/a") is None


async def test_a_key_whose_lease_ended_can_be_made_by_another(form: Any) -> None:
    store = form.open()
    lease = await store.grant(5_000)
    await store.put("leader", b"old", lease=lease.id)
    assert await store.put_if("leader", b"new", expected_revision=0) is None
    await form.pass_time(lease.ttl_ms / 1_000 + 1)
    assert await store.put_if("leader", b"new", expected_revision=0) is not None


async def test_a_key_put_again_belongs_to_its_latest_lease_only(form: Any) -> None:
    store = form.open()
    first, second = await store.grant(5_000), await store.grant(5_000)
    await store.put("freed", b"", lease=first.id)
    await store.put("freed", b"")
    await store.put("moved", b"", lease=first.id)
    await store.put("moved", b"", lease=second.id)
    await store.revoke(first)
    assert await store.get("freed") is not None
    assert await store.get("moved") is not None
    await store.revoke(second)
    assert await store.get("moved") is None


async def test_a_revoked_lease_takes_its_keys_at_once(form: Any) -> None:
    store = form.open()
    lease = await store.grant(5_000)
    await store.put("nodes/a", b"", lease=lease.id)
    await store.revoke(lease)
    assert await store.get("nodes/a") is None
    await store.revoke(lease)  # gone is gone
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)


async def test_leases_outlive_the_client_that_asked_for_them(form: Any) -> None:
    holder, other = form.open(), form.open()
    lease = await holder.grant(5_000)
    await holder.put("nodes/a", b"", lease=lease.id)
    await holder.close()
    assert await other.get("nodes/a") is not None
    await form.pass_time(lease.ttl_ms / 1_000 + 1)
    assert await other.get("nodes/a") is None


@pytest.mark.parametrize(
    "key", ["", "k" * (KEY_BYTES_MAX + 1), "é" * KEY_BYTES_MAX, "\ud800", b"k"]
)
async def test_a_key_that_cannot_be_stored_is_refused(form: Any, key: Any) -> None:
    store = form.open()
    for call in (
        store.get(key),
        store.put(key, b""),
        store.put_if(key, b"", expected_revision=0),
        store.delete(key),
        store.delete_if(key, expected_revision=1),
    ):
        with pytest.raises(BadKey, match="key"):
            await call


@pytest.mark.parametrize("value", [b"v" * (VALUE_BYTES_MAX + 1), "text", None])
async def test_a_value_that_cannot_be_stored_is_refused(form: Any, value: Any) -> None:
    store = form.open()
    with pytest.raises(BadValue, match="value"):
        await store.put("k", value)
    with pytest.raises(BadValue, match="value"):
        await store.put_if("k", value, expected_revision=0)
    assert await store.get("k") is None


async def test_the_greatest_key_and_value_are_stored(form: Any) -> None:
    store = form.open()
    key, value = "k" * KEY_BYTES_MAX, b"v" * VALUE_BYTES_MAX
    await store.put(key, value)
    assert (await store.get(key)).value == value


async def test_numbers_out_of_range_are_refused(form: Any) -> None:
    store = form.open()
    for call in (
        store.grant(0),
        store.grant(LEASE_MS_MAX + 1),
        store.put("k", b"", lease=-1),
        store.put("k", b"", lease=1 << 63),
        store.put_if("k", b"", expected_revision=-1),
        store.delete_if("k", expected_revision=1 << 63),
    ):
        with pytest.raises(Invalid):
            await call
    with pytest.raises(Invalid, match="from_revision"):
        store.watch("", -1)


async def test_a_closed_client_says_so(form: Any) -> None:
    store = form.open()
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.get("k")


async def test_no_value_shows_in_the_repr_of_an_entry(form: Any) -> None:
    store = form.open()
    await store.put("k", b"hush-hush")
    assert "hush" not in repr(await store.get("k"))
