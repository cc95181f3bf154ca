"""Records come back as they were put, and nothing that is not one comes back at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstore.metadata import Entry
from kvstore.metadata.bounds import KEY_BYTES_MAX, VALUE_BYTES_MAX
from kvstore.metadata.records import (
    BadRecord,
    ConductorRecord,
    NamespaceRecord,
    NodeRecord,
    PurgeRecord,
    ShareRecord,
    TenantRecord,
)

NODE: dict[str, Any] = {
    "node_id": "n1",
    "epoch": 3,
    "address": "127.0.0.1:7410",
    "tiers": {"dram": 1 << 30, "disk": 1 << 40},
    "transports": ("shm", "tcp"),
    "labels": {"zone": "é"},
    "state": "serving",
}
RECORDS = [
    NodeRecord(**NODE),
    NodeRecord(**{**NODE, "state": "draining", "tiers": {}, "transports": (), "labels": {}}),
    NamespaceRecord("ab" * 32, {"layers": 2, "dtype": "bf16", "groups": [[0, 1], None]}),
    TenantRecord("tenant/ä", "00ff"),
    PurgeRecord("n1", "ab" * 32, "", 7),
    PurgeRecord("n1", "", "tenant/ä", 1 << 41),
    ShareRecord("tenant/ä", 2.5, 8 << 30),
    ConductorRecord("c1", "[::1]:7420", "draining"),
]


def stored(record: Any, **changes: Any) -> Entry:
    fields = {**json.loads(record.encode()), **changes}
    return Entry(record.key(), json.dumps(fields).encode(), 1)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.key()[:20])
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    assert type(record).parse(Entry(record.key(), record.encode(), 1)) == record


def test_equal_records_have_equal_bytes() -> None:
    turned = {**NODE, "tiers": dict(reversed(NODE["tiers"].items()))}
    assert NodeRecord(**turned).encode() == NodeRecord(**NODE).encode()
    assert TenantRecord("a", "00").encode() == b'{"name":"a","secret":"00"}'


def test_keys_say_what_and_which() -> None:
    assert [record.key() for record in RECORDS[1:]] == [
        "nodes/n1",
        "namespaces/" + "ab" * 32,
        "tenants/tenant/ä",
        "purges/n1/namespace/" + "ab" * 32,
        "purges/n1/tenant/tenant/ä",
        "shares/tenant/ä",
        "conductors/c1",
    ]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.key()[:20])
def test_fields_of_a_later_version_are_ignored(record: Any) -> None:
    assert type(record).parse(stored(record, later={"x": 1})) == record


@pytest.mark.parametrize("name", list(NODE))
def test_a_missing_field_is_named(name: str) -> None:
    fields = json.loads(NodeRecord(**NODE).encode())
    del fields[name]
    with pytest.raises(BadRecord, match=f"nodes/n1: missing {name}"):
        NodeRecord.parse(Entry("nodes/n1", json.dumps(fields).encode(), 1))


WRONG: list[tuple[str, list[Any]]] = [
    ("node_id", ["", 1, None, "a\nb", "n" * KEY_BYTES_MAX, "\ud800"]),
    ("epoch", [-1, 1.0, "1", True, None, 1 << 63]),
    ("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "host:²", 1, None]),
    ("tiers", [[], {"dram": -1}, {"dram": 1.5}, {"dram": True}, None]),
    ("transports", ["shm", [1], {}, None]),
    ("labels", [[], {"zone": 1}, {"zone": None}, None]),
    ("state", ["gone", "", None, 1, ["serving"]]),
]


@pytest.mark.parametrize(("name", "wrong"), [(name, each) for name, all_ in WRONG for each in all_])
def test_a_wrong_field_is_named(name: str, wrong: Any) -> None:
    with pytest.raises(BadRecord, match=f"nodes/n1: {name} must be"):
        NodeRecord.parse(stored(NodeRecord(**NODE), **{name: wrong}))
    with pytest.raises(BadRecord, match=f"{name} must be"):
        NodeRecord(**{**NODE, name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("conductor_id", one) for one in ("", 7, "c" * KEY_BYTES_MAX)),
        *(("address", one) for one in ("", "host", "host:0", None, 1)),
        ("state", "gone"),
    ],
)
def test_a_wrong_field_of_a_conductor_is_named(name: str, wrong: Any) -> None:
    fields = {"conductor_id": "c1", "address": "127.0.0.1:7420", "state": "serving"}
    with pytest.raises(BadRecord, match=f"{name} must be"):
        ConductorRecord(**{**fields, name: wrong})
    with pytest.raises(BadRecord, match=f"conductors/c1: {name} must be"):
        ConductorRecord.parse(stored(ConductorRecord(**fields), **{name: wrong}))


@pytest.mark.parametrize("digest", ["", "A0", "abc", "xy", None, "ab" * 300])
def test_a_digest_is_lower_case_hex(digest: Any) -> None:
    with pytest.raises(BadRecord, match="digest"):
        NamespaceRecord(digest, {})


@pytest.mark.parametrize("spec", [[], None, {"x": (1,)}, {1: 2}, {"x": b""}, {"x": float("nan")}])
def test_a_spec_is_what_json_gives_back(spec: Any) -> None:
    with pytest.raises(BadRecord, match="spec"):
        NamespaceRecord("ab", spec)


@pytest.mark.parametrize(
    ("namespace", "tenant"), [("", ""), ("ab", "a"), ("AB", ""), (None, "a"), ("", 1), ("", "\n")]
)
def test_a_purge_is_of_a_namespace_or_of_a_tenant(namespace: Any, tenant: Any) -> None:
    with pytest.raises(BadRecord, match=r"namespace|tenant"):
        PurgeRecord("n1", namespace, tenant, 1)


@pytest.mark.parametrize("node_id", ["", "a/b", None])
def test_a_purge_is_one_nodes(node_id: Any) -> None:
    with pytest.raises(BadRecord, match="node_id"):
        PurgeRecord(node_id, "ab", "", 1)


@pytest.mark.parametrize(
    "weight", [0, -1.0, 0.0001, 1_001, 1e300, float("inf"), float("nan"), True, "2", None]
)
def test_a_weight_is_a_number_above_nothing_and_within_reason(weight: Any) -> None:
    with pytest.raises(BadRecord, match="weight must be a number from"):
        ShareRecord("a", weight, 0)


@pytest.mark.parametrize("quota", [-1, 1.0, True, "8GiB", None, 1 << 63])
def test_a_quota_is_bytes(quota: Any) -> None:
    with pytest.raises(BadRecord, match="bytes_max must be bytes"):
        ShareRecord("a", 1.0, quota)


def test_a_weight_of_two_is_one_record_however_it_is_written() -> None:
    written = b'{"bytes_max":0,"name":"a","weight":2.0}'
    assert ShareRecord("a", 2, 0).encode() == ShareRecord("a", 2.0, 0).encode() == written
    assert ShareRecord.parse(stored(ShareRecord("a", 1.0, 0), weight=2)).weight == 2.0


def test_a_record_too_long_for_a_value_is_refused() -> None:
    with pytest.raises(BadRecord, match="limit"):
        NamespaceRecord("ab", {"x": "y" * VALUE_BYTES_MAX}).encode()


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"1", b"\xff\xfe", b'{"name":NaN}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_no_record(value: bytes) -> None:
    with pytest.raises(BadRecord, match="tenants/a: not"):
        TenantRecord.parse(Entry("tenants/a", value, 1))


def test_a_record_under_anothers_key_is_refused() -> None:
    value = TenantRecord("a", "00").encode()
    with pytest.raises(BadRecord, match="tenants/b: holds the record of tenants/a"):
        TenantRecord.parse(Entry("tenants/b", value, 1))


def test_nothing_shows_the_secret() -> None:
    record = TenantRecord("a", "c0ffee")
    assert "c0ffee" not in repr(record) + str(record)
    with pytest.raises(BadRecord) as caught:
        TenantRecord("a", "C0FFEE")
    assert "c0ffee" not in str(caught.value).lower()
