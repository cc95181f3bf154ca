"""A tombstone covers what was there before it, and nothing that came later."""

from __future__ import annotations

import numpy as np

from kvstore.core.tombstones import Tombstones, purged

A, B = b"a" * 32, b"b" * 32
X, Y = b"x" * 16, b"y" * 16
TOMBSTONES = Tombstones({A: 10}, {X: 20})


def gone(tombstones: Tombstones, *blocks: tuple[bytes, bytes, int]) -> list[bool]:
    """Which of these are purged: (namespace, tenant, generation)."""
    namespaces, tenants, generations = zip(*blocks, strict=True)
    numbers = np.arange(len(blocks))
    generation = np.array(generations, np.uint64)
    return purged(tombstones, namespaces, numbers, tenants, numbers, generation).tolist()


def test_up_to_and_including_its_generation_everything_is_purged() -> None:
    assert gone(TOMBSTONES, (A, Y, 10), (A, Y, 11)) == [True, False]
    assert gone(TOMBSTONES, (B, X, 20), (B, X, 21)) == [True, False]


def test_of_two_tombstones_the_one_that_reaches_further_counts() -> None:
    assert gone(TOMBSTONES, (A, X, 15), (A, X, 21)) == [True, False]


def test_others_are_not_touched() -> None:
    assert gone(TOMBSTONES, (B, Y, 1), (B, Y, 2**63)) == [False, False]
    assert gone(Tombstones(), (A, X, 1)) == [False]


def test_rows_that_share_a_digest_and_no_rows_at_all() -> None:
    ones, generation = np.array([1, 0, 1]), np.array([1, 10, 11], np.uint64)
    assert purged(TOMBSTONES, [B, A], ones, [Y], ones * 0, generation).tolist() == [
        *(True, False, False)
    ]
    none = ones[:0]
    assert not purged(TOMBSTONES, [], none, [], none, generation[:0]).size
