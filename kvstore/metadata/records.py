"""What Moonpool keeps in the metadata: typed records, one encoding for equal records, strict reads.

A record is checked when it is made, so none is stored that another process would refuse. Fields
that a reader does not know are ignored, so that versions can run side by side; a field that is
missing or of the wrong type is an error that names the key and the field, and never the value.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

from kvstore.errors import Invalid
from kvstore.metadata.bounds import INT64_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from kvstore.metadata.protocol import Entry

WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000.0  # further apart, what is due to the least is no block


class BadRecord(Invalid):
    """A record with a missing or wrong field; the message names the record and the field."""


class _Record:
    """Frozen dataclasses whose fields are JSON values; `prefix` is where their keys start."""

    prefix: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def key(self) -> str:
        raise NotImplementedError

    def encode(self) -> bytes:
        """Canonical: equal records have equal bytes."""
        try:
            text = json.dumps(
                asdict(self),
                sort_keys=True,
                separators=(",", ":"),
                ensure_ascii=False,
                allow_nan=False,
            )
            encoded = text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRecord(f"{self.key()}: no JSON can say this: {error}") from error
        if len(encoded) > VALUE_BYTES_MAX:
            raise BadRecord(f"{self.key()}: {len(encoded)} bytes; the limit is {VALUE_BYTES_MAX}")
        return encoded

    @classmethod
    def parse(cls, entry: Entry) -> Self:
        """The record in `entry`, whose key must be the record's own."""
        try:
            found = json.loads(entry.value, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise BadRecord(f"{entry.key}: not JSON") from None
        if not isinstance(found, dict):
            raise BadRecord(f"{entry.key}: not a JSON object")
        missing = sorted(cls.__dataclass_fields__.keys() - found.keys())
        if missing:
            raise BadRecord(f"{entry.key}: missing {', '.join(missing)}")
        known = {name: _frozen(found[name]) for name in cls.__dataclass_fields__}
        try:
            record = cls(**known)
        except BadRecord as error:
            raise BadRecord(f"{entry.key}: {error}") from None
        if record.key() != entry.key:
            raise BadRecord(f"{entry.key}: holds the record of {record.key()}")
        return record

    @classmethod
    def readable(cls, entries: Iterable[Entry]) -> tuple[list[Self], list[BadRecord]]:
        """Those of many that can be read, and what is wrong with each of the others."""
        records, bad = list[Self](), list[BadRecord]()
        for entry in entries:
            try:
                records.append(cls.parse(entry))
            except BadRecord as error:
                bad.append(error)
        return records, bad


@dataclass(frozen=True)
class NodeRecord(_Record):
    """A node that serves; put under a lease, so that it goes when the node does."""

    prefix = "nodes/"
    node_id: str
    epoch: int  # grows with every start of the node
    address: str  # gRPC, "host:port"
    tiers: dict[str, int]  # name to capacity in bytes
    transports: tuple[str, ...]
    labels: dict[str, str]
    state: Literal["serving", "draining"]

    def __post_init__(self) -> None:
        _need("node_id", _is_name(self.node_id, self.prefix), "printable text that fits a key")
        _need("epoch", _is_count(self.epoch), "an integer from 0")
        _need("address", _is_address(self.address), 'like "127.0.0.1:7410"')
        _need("tiers", _is_dict_of(self.tiers, _is_count), "names with their bytes")
        listed = isinstance(self.transports, tuple) and all(map(_is_text, self.transports))
        _need("transports", listed, "a tuple of names")
        _need("labels", _is_dict_of(self.labels, _is_text), "names with their text")
        _need("state", self.state in ("serving", "draining"), '"serving" or "draining"')

    def key(self) -> str:
        return self.prefix + self.node_id


@dataclass(frozen=True)
class ConductorRecord(_Record):
    """A conductor that answers for the pool; put under a lease, so that it goes when it does."""

    prefix = "conductors/"
    conductor_id: str
    address: str  # gRPC, "host:port"
    state: Literal["serving", "draining"]

    def __post_init__(self) -> None:
        name = _is_name(self.conductor_id, self.prefix)
        _need("conductor_id", name, "printable text that fits a key")
        _need("address", _is_address(self.address), 'like "127.0.0.1:7420"')
        _need("state", self.state in ("serving", "draining"), '"serving" or "draining"')

    def key(self) -> str:
        return self.prefix + self.conductor_id


@dataclass(frozen=True)
class NamespaceRecord(_Record):
    """A namespace and the KVSpec it was registered with."""

    prefix = "namespaces/"
    digest: str  # lower-case hex
    spec: dict[str, Any]

    def __post_init__(self) -> None:
        _need("digest", _is_hex(self.digest), "lower-case hex of whole bytes")
        _need("spec", _is_json_object(self.spec), "a JSON object (text keys, lists not tuples)")

    def key(self) -> str:
        return self.prefix + self.digest


@dataclass(frozen=True)
class QuarantineRecord(_Record):
    """A namespace whose KV was found wrong; while the record stands nobody uses its blocks."""

    prefix = "quarantine/"
    digest: str  # lower-case hex
    reason: str

    def __post_init__(self) -> None:
        _need("digest", _is_hex(self.digest), "lower-case hex of whole bytes")
        _need("reason", _is_text(self.reason), "printable text")

    def key(self) -> str:
        return self.prefix + self.digest


@dataclass(frozen=True)
class PurgeRecord(_Record):
    """A tombstone: what a node had of a namespace, or of a tenant, up to a generation is gone."""

    prefix = "purges/"
    node_id: str
    namespace: str  # its digest, lower-case hex; empty where a tenant is named
    tenant: str
    generation: int  # of the node's SSD, the last that is purged

    def __post_init__(self) -> None:
        name = _is_name(self.node_id, self.prefix) and "/" not in self.node_id
        _need("node_id", name, "printable text that fits a key, without /")
        _need("namespace", self.namespace == "" or _is_hex(self.namespace), "hex, or empty")
        _need("tenant", bool(self.namespace) != bool(self.tenant), "empty or the only one named")
        fits = not self.tenant or _is_name(self.tenant, self.prefix_of(self.node_id) + "tenant/")
        _need("tenant", fits, "printable text that fits a key")
        _need("generation", _is_count(self.generation), "an integer from 0")

    @classmethod
    def prefix_of(cls, node_id: str) -> str:
        return f"{cls.prefix}{node_id}/"

    def key(self) -> str:
        whose = f"namespace/{self.namespace}" if self.namespace else f"tenant/{self.tenant}"
        return self.prefix_of(self.node_id) + whose


@dataclass(frozen=True)
class TenantRecord(_Record):
    """A tenant and the secret it signs with. Neither repr nor an error shows the secret."""

    prefix = "tenants/"
    name: str
    secret: str = field(repr=False)  # lower-case hex

    def __post_init__(self) -> None:
        _need("name", _is_name(self.name, self.prefix), "printable text that fits a key")
        _need("secret", _is_hex(self.secret), "lower-case hex of whole bytes")

    def key(self) -> str:
        return self.prefix + self.name


@dataclass(frozen=True)
class TokenRecord(_Record):
    """A bearer token: whose calls it is shown with, and until when. Never the token itself."""

    prefix = "tokens/"
    id: str
    digest: str  # BLAKE3 of the whole token, lower-case hex
    tenant: str
    admin: bool  # whether its bearer may call Admin
    expires: int  # seconds since 1970, by the wall clock: hosts share no other

    def __post_init__(self) -> None:
        _need("id", _is_name(self.id, self.prefix), "printable text that fits a key")
        _need("digest", _is_hex(self.digest), "lower-case hex of whole bytes")
        _need(
            "tenant", _is_name(self.tenant, TenantRecord.prefix), "printable text that fits a key"
        )
        _need("admin", type(self.admin) is bool, "true or false")
        _need("expires", _is_count(self.expires), "an integer from 0")

    def key(self) -> str:
        return self.prefix + self.id


@dataclass(frozen=True)
class ShareRecord(_Record):
    """What an operator grants one tenant; a tenant without a record has weight 1 and no quota."""

    prefix = "shares/"
    name: str
    weight: float
    bytes_max: int  # of each tier; 0 for no quota

    def __post_init__(self) -> None:
        _need("name", _is_name(self.name, self.prefix), "printable text that fits a key")
        _need("weight", _is_weight(self.weight), f"a number from {WEIGHT_MIN} to {WEIGHT_MAX}")
        _need("bytes_max", _is_count(self.bytes_max), "bytes of each tier, 0 for no quota")
        # One encoding for equal records, whether a peer wrote 2 or 2.0.
        object.__setattr__(self, "weight", float(self.weight))

    def key(self) -> str:
        return self.prefix + self.name


def _need(name: str, good: bool, expected: str) -> None:
    if not good:
        raise BadRecord(f"{name} must be {expected}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()  # which lone surrogates are not


def _is_address(value: object) -> bool:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    valid_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536
    return _is_text(value) and bool(host) and valid_port


def _is_name(value: object, prefix: str) -> bool:
    if not isinstance(value, str) or not value or not value.isprintable():
        return False
    return len((prefix + value).encode()) <= KEY_BYTES_MAX


def _is_hex(value: object) -> bool:
    lower_hex = set(string.hexdigits.lower())
    return (
        isinstance(value, str)
        and 0 < len(value) <= 512
        and set(value) <= lower_hex
        and (len(value) % 2 == 0)
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= INT64_MAX


def _is_weight(value: object) -> bool:
    return type(value) in (int, float) and WEIGHT_MIN <= cast(float, value) <= WEIGHT_MAX


def _is_dict_of(value: object, is_good: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and is_good(each) for name, each in value.items()
    )


def _is_json_object(value: object) -> bool:
    """Whether JSON gives back exactly this; it would turn other keys to text, tuples to lists."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
