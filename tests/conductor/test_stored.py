"""Conductors look for blocks under the very keys that nodes store them under."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.block import stored_keys
from kvstore.conductor.stored import stored_prints
from kvstore.core.fingerprints import fingerprints
from kvstore.kernels.stored_prints import LANES

HASH = st.binary(min_size=32, max_size=32)


@settings(deadline=None)
@given(HASH, HASH, st.integers(0, 2**32 - 1), st.lists(HASH, max_size=40))
def test_a_print_is_that_of_the_key_that_the_block_is_stored_under(
    secret: bytes, namespace: bytes, group: int, hashes: list[bytes]
) -> None:
    wanted = fingerprints(stored_keys(secret, namespace, group, hashes))
    assert stored_prints(secret, namespace, group, hashes).tolist() == wanted.tolist()


@pytest.mark.parametrize("count", [LANES - 1, LANES, LANES + 1, 3 * LANES + 5])
def test_so_it_is_of_more_than_are_hashed_at_once(count: int) -> None:
    hashes = [number.to_bytes(32, "little") for number in range(count)]
    wanted = fingerprints(stored_keys(b"s" * 32, b"n" * 32, 7, hashes))
    assert stored_prints(b"s" * 32, b"n" * 32, 7, hashes).tolist() == wanted.tolist()


def test_hashes_that_are_too_short_are_not_taken_for_fewer() -> None:
    with pytest.raises((AssertionError, ValueError)):
        stored_prints(b"s" * 32, b"n" * 32, 0, [b"h" * 16, b"h" * 16])
