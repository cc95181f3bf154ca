"""What every form refuses, and what a closed client says."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.errors import Invalid
from kvstore.metadata import BadKey, BadValue, StoreClosed
from kvstore.metadata.bounds import KEY_BYTES_MAX, LEASE_MS_MAX, VALUE_BYTES_MAX


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
