"""Decisions are remembered as far as there is room, and each tenant has its share of that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore.conductor.decided import Decided
from kvstore.conductor.decision import Decision


def decided(request: str) -> Decision:
    return Decision(request, tokens=1, blocks=0, waited=0.0)


def test_of_one_tenant_the_latest_are_remembered() -> None:
    kept = Decided(3)
    for request in "abcad":
        kept.keep("one", decided(request))
    assert [kept.get("one", each) is not None for each in "abcd"] == [True, False, True, True]
    assert kept.get("other", "a") is None


def test_a_tenant_that_asks_without_end_forgets_its_own() -> None:
    kept = Decided(8)
    for request in "abc":
        kept.keep("quiet", decided(request))
    for number in range(100):
        kept.keep("loud", decided(str(number)))
    assert all(kept.get("quiet", each) for each in "abc")
    assert [kept.get("loud", str(each)) is not None for each in range(94, 100)] == [False] + 5 * [
        True
    ]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=200))
def test_who_has_no_more_than_its_share_loses_nothing(asked: list[tuple[int, int]]) -> None:
    most, kept = 12, Decided(12)
    seen: dict[int, list[int]] = {}
    for tenant, request in asked:
        kept.keep(str(tenant), decided(str(request)))
        mine = seen.setdefault(tenant, [])
        if request in mine:
            mine.remove(request)
        mine.append(request)
        assert len(kept) <= most
        assert kept.get(str(tenant), str(request)), "what was just decided is known"
    for tenant, mine in seen.items():
        if len(mine) <= most // 5:
            assert all(kept.get(str(tenant), str(each)) for each in mine)
