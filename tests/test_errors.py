"""Errors are sorted by what the caller should do, and the map of them is the truth."""

from __future__ import annotations

import re

from kvstore import errors
from kvstore.errors import KVStoreError, Overloaded

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


def test_the_map_in_the_module_names_every_error_once() -> None:
    drawn = re.findall(r"[A-Z]\w+", errors.__doc__.split("\n\n")[1].replace("KVStoreError", ""))
    drawn = [name for name in drawn if hasattr(errors, name)]
    assert sorted(drawn) == sorted(k.__name__ for k in KINDS if k is not KVStoreError)


def test_every_error_stands_under_one_kind_of_advice() -> None:
    advice = set(KVStoreError.__subclasses__())
    assert {kind.__name__ for kind in advice} == {
        *("Invalid", "Lapsed", "Rejected", "Denied", "Broken"),
    }
    for kind in KINDS:
        assert kind is KVStoreError or len([a for a in advice if issubclass(kind, a)]) == 1
        assert kind.__doc__, f"{kind.__name__} says nothing"


def test_a_rejection_says_when_to_come_back() -> None:
    assert Overloaded("full").retry_after_ms == 0
    assert Overloaded("full", 50).retry_after_ms == 50
    assert str(Overloaded("full", 50)) == "full"
