"""What a metadata call may carry, checked before any store sees it, so that all forms agree.

The limits are below etcd's own (1.5 MiB a request), so a caller who stays within them can move
from the embedded form to etcd without change. No message repeats a value: values hold secrets.
"""

from __future__ import annotations

from kvstore.errors import Invalid
from kvstore.limits import KiB, MiB

KEY_BYTES_MAX = 1 * KiB
VALUE_BYTES_MAX = 1 * MiB
LEASE_MS_MAX = 24 * 3_600_000  # a lease is a sign of life; who needs a day needs no lease
INT64_MAX = (1 << 63) - 1  # revisions and lease ids, in etcd and in SQLite


class BadKey(Invalid):
    """The key or prefix is not text that can be stored; the message says why."""


class BadValue(Invalid):
    """The value is not bytes, or too long."""


def key_bytes(key: str) -> bytes:
    """The key as it is stored and ordered: UTF-8, 1 byte to KEY_BYTES_MAX."""
    encoded = prefix_bytes(key)
    if not encoded:
        raise BadKey("the key is empty; a key has at least one character")
    return encoded


def prefix_bytes(prefix: str) -> bytes:
    """A prefix is a key that may be empty; the empty prefix means every key."""
    if not isinstance(prefix, str):
        raise BadKey(f"a key is a str, not {type(prefix).__name__}")
    try:
        encoded = prefix.encode()
    except UnicodeEncodeError as error:
        raise BadKey(f"the key is not valid Unicode at position {error.start}") from None
    if len(encoded) > KEY_BYTES_MAX:
        raise BadKey(f"the key has {len(encoded)} bytes; the limit is {KEY_BYTES_MAX}")
    return encoded


def prefix_end(prefix: bytes) -> bytes:
    """The first byte string after all keys that start with `prefix`. UTF-8 never contains 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"


def check_value(value: bytes) -> None:
    if not isinstance(value, bytes):
        raise BadValue(f"a value is bytes, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise BadValue(f"the value has {len(value)} bytes; the limit is {VALUE_BYTES_MAX}")


def check_int64(what: str, number: int) -> None:
    """Revisions and lease ids: 0 (none) to INT64_MAX."""
    if type(number) is not int or not 0 <= number <= INT64_MAX:
        raise Invalid(f"{what} is {number!r}; it must be an integer from 0 to {INT64_MAX}")


def check_ttl(ttl_ms: int) -> None:
    if type(ttl_ms) is not int or not 1 <= ttl_ms <= LEASE_MS_MAX:
        raise Invalid(f"ttl_ms is {ttl_ms!r}; it must be an integer from 1 to {LEASE_MS_MAX}")
