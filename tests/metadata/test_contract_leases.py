"""What every form promises of leases: their keys end with them, on time, for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore.metadata import LeaseLost


async def gone(store: Any, key: str) -> None:
    """Return once nobody has it: etcd looks twice a second whose time is over."""
    while await store.get(key) is not None:
        await asyncio.sleep(0.05)


async def test_the_keys_of_a_lease_vanish_when_its_time_is_over(form: Any) -> None:
    holder, other = form.open(), form.open()
    lease = await holder.grant(form.ttl_ms)
    await holder.put("nodes/a", b"", lease=lease.id)
    await holder.put("kept", b"")
    assert (await other.get("nodes/a")).lease == lease.id
    await form.pass_time(lease.ttl_ms / 1_000 - form.late_s)
    assert await other.get("nodes/a") is not None
    await form.pass_time(form.late_s + 1)
    await gone(other, "nodes/a")
    assert [entry.key for entry in (await other.list(""))[0]] == ["kept"]


async def test_a_lease_kept_alive_outlives_its_ttl(form: Any) -> None:
    store = form.open()
    lease = await store.grant(form.ttl_ms)
    await store.put("nodes/a", b"", lease=lease.id)
    for _ in range(4):
        await form.pass_time(lease.ttl_ms / 1_000 - form.late_s)
        await store.keep_alive(lease)
    assert await store.get("nodes/a") is not None


async def test_any_client_may_keep_a_lease_alive(form: Any) -> None:
    lease = await form.open().grant(form.ttl_ms)
    await form.open().keep_alive(lease)


async def test_a_lease_that_ended_never_comes_back(form: Any) -> None:
    store = form.open()
    lease = await store.grant(form.ttl_ms)
    await store.put("nodes/a", b"", lease=lease.id)
    await form.pass_time(lease.ttl_ms / 1_000 + 1)
    await gone(store, "nodes/a")
    with pytest.raises(LeaseLost, match=str(lease.id)):
        await store.keep_alive(lease)
    with pytest.raises(LeaseLost):
        await store.put("nodes/a", b"", lease=lease.id)
    with pytest.raises(LeaseLost):
        await store.put_if("nodes/a", b"", expected_revision=0, lease=lease.id)
    assert await store.get("nodes/a") is None


async def test_who_comes_late_has_lost_its_lease_with_its_keys_or_neither(form: Any) -> None:
    holder, other = form.open(), form.open()
    lease = await holder.grant(form.ttl_ms)
    await holder.put("nodes/a", b"", lease=lease.id)
    await form.pass_time(lease.ttl_ms / 1_000 + 0.1)
    try:
        await holder.keep_alive(lease)
    except LeaseLost:
        await gone(other, "nodes/a")
    else:
        await form.pass_time(lease.ttl_ms / 1_000 - form.late_s)
        assert await other.get("nodes/a") is not None


async def test_a_key_whose_lease_ended_can_be_made_by_another(form: Any) -> None:
    store = form.open()
    lease = await store.grant(form.ttl_ms)
    await store.put("leader", b"old", lease=lease.id)
    assert await store.put_if("leader", b"new", expected_revision=0) is None
    await form.pass_time(lease.ttl_ms / 1_000 + 1)
    await gone(store, "leader")
    assert await store.put_if("leader", b"new", expected_revision=0) is not None


async def test_a_key_put_again_belongs_to_its_latest_lease_only(form: Any) -> None:
    store = form.open()
    first, second = await store.grant(form.ttl_ms), await store.grant(form.ttl_ms)
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
    lease = await store.grant(form.ttl_ms)
    await store.put("nodes/a", b"", lease=lease.id)
    await store.revoke(lease)
    assert await store.get("nodes/a") is None
    await store.revoke(lease)  # gone is gone
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)


async def test_leases_outlive_the_client_that_asked_for_them(form: Any) -> None:
    holder, other = form.open(), form.open()
    lease = await holder.grant(form.ttl_ms)
    await holder.put("nodes/a", b"", lease=lease.id)
    await holder.close()
    assert await other.get("nodes/a") is not None
    await form.pass_time(lease.ttl_ms / 1_000 + 1)
    await gone(other, "nodes/a")
