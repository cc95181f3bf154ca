"""Errors are sorted by what the caller should do, and the map of them is the truth."""

from __future__ import annotations

import re

from kvstore import errors, telemetry
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


def test_only_named_counters_count_and_all_are_there_from_the_start() -> None:
    counters = telemetry.Counters()
    assert counters.totals()["sealed_blocks"] == 0
    counters.add("sealed_blocks")
    counters.add("sealed_blocks", 2)
    counters.add("match_miss", reason="absent")
    assert counters.totals()["sealed_blocks"] == 3
    assert counters.totals()["match_miss.absent"] == 1
    assert counters.totals().keys() - {"match_miss.absent"} < telemetry.NAMES.keys()
    try:
        counters.add("seeled_blocks")
    except AssertionError as error:
        assert "seeled_blocks" in str(error)
    else:
        raise AssertionError("a counter that has no name was counted")
