"""What a line carried while it was busy, and who is told of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.carried import BUSY_SECONDS_MAX, Carried, Ledger
from kvstore.limits import CARRIED_KEPT


def test_one_transfer_is_one_measure() -> None:
    ledger = Ledger()
    ledger.link.begin(1.0, "a")
    ledger.link.end(1.5, 100, "a")
    ledger.ssd.begin(2.0)
    ledger.ssd.end(2.25, 50)
    assert ledger.since(0) == [Carried(100, 0.5, False, "a"), Carried(50, 0.25, True, "")]
    assert ledger.since(1) == [Carried(50, 0.25, True, "")] and ledger.since(2) == []


def test_transfers_that_overlap_are_measured_together() -> None:
    ledger = Ledger()
    ledger.link.begin(1.0, "a")
    ledger.link.begin(1.2, "a")
    ledger.link.end(1.4, 100, "a")
    ledger.link.begin(1.4, "a")
    ledger.link.end(1.5, 100, "a")
    assert ledger.since(0) == []
    ledger.link.end(1.6, 40, "a")
    assert ledger.since(0) == [Carried(240, pytest.approx(0.6), False, "a")]


def test_what_came_from_several_nodes_is_nobodys_alone() -> None:
    ledger = Ledger()
    ledger.link.begin(0.0, "a")
    ledger.link.begin(0.1, "b")
    ledger.link.end(0.2, 1, "a")
    ledger.link.end(0.3, 1, "b")
    ledger.link.begin(0.4, "b")
    ledger.link.end(0.5, 1, "b")
    assert [one.source for one in ledger.since(0)] == ["", "b"]


def test_a_link_that_is_never_idle_names_only_those_who_sent_in_a_measure() -> None:
    ledger, now = Ledger(), 0.2
    ledger.link.begin(0.0, "a")
    ledger.link.begin(0.1, "b")
    ledger.link.end(now, 10, "a")
    for _ in range(40):
        ledger.link.begin(now, "b")
        now += 0.1
        ledger.link.end(now, 10, "b")
    sources = [one.source for one in ledger.since(0)]
    assert sources[0] == "" and len(sources) >= 3 and set(sources[1:]) == {"b"}


def test_who_is_still_sending_when_a_measure_begins_is_named_in_it() -> None:
    ledger = Ledger()
    ledger.link.begin(0.0, "a")
    ledger.link.begin(0.1, "b")
    ledger.link.begin(0.1, "b")
    ledger.link.end(BUSY_SECONDS_MAX + 0.1, 10, "b")
    ledger.link.end(BUSY_SECONDS_MAX + 0.2, 10, "b")
    ledger.link.end(BUSY_SECONDS_MAX + 0.3, 10, "a")
    assert [one.source for one in ledger.since(0)] == ["", ""]


def test_a_line_that_is_never_idle_is_measured_too() -> None:
    ledger, now = Ledger(), 0.0
    ledger.link.begin(now, "a")
    for _ in range(100):
        now += 0.1
        ledger.link.begin(now, "a")
        ledger.link.end(now, 10, "a")
    measured = ledger.since(0)
    assert len(measured) >= 8 and sum(one.size_bytes for one in measured) <= 1_000
    assert all(one.seconds <= BUSY_SECONDS_MAX + 0.11 for one in measured)


def test_what_brought_nothing_says_nothing() -> None:
    ledger = Ledger()
    ledger.ssd.begin(0.0)
    ledger.ssd.end(1.0, 0)
    assert ledger.since(0) == []


def test_only_the_last_are_kept() -> None:
    ledger = Ledger()
    for number in range(CARRIED_KEPT + 10):
        ledger.ssd.begin(float(number))
        ledger.ssd.end(number + 0.5, 1 + number)
    assert [one.size_bytes for one in ledger.since(0)] == list(range(11, CARRIED_KEPT + 11))
    assert len(ledger.since(ledger.count - 3)) == 3


@given(st.lists(st.tuples(st.floats(0.0, 0.4), st.floats(0.0, 3.0), st.integers(0, 1_000))))
def test_no_byte_is_counted_twice_and_no_second(some: list[tuple[float, float, int]]) -> None:
    """Transfers that begin one after the other, and take so long."""
    ledger, began, events = Ledger(), 0.0, list[tuple[float, int, int]]()
    for pause, takes, size in some[:CARRIED_KEPT]:
        began += pause
        events += [(began, 0, 0), (began + takes, 1, size)]
    for now, ends, size in sorted(events):
        if ends:
            ledger.link.end(now, size)
        else:
            ledger.link.begin(now)
    measured = ledger.since(0)
    assert sum(one.size_bytes for one in measured) <= sum(size for _, _, size in some)
    assert sum(one.seconds for one in measured) <= max((now for now, _, _ in events), default=0)
