"""Decisions are remembered as far as there is room, and each tenant has its share of that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore.conductor.crews import Whose
from kvstore.conductor.decided import Decided
from kvstore.conductor.decision import Decision


def of(tenant: object) -> Whose:
    return str(tenant), b"n" * 32, 0


def decided(request: str) -> Decision:
    return Decision(request, tokens=1, blocks=0, waited=0.0)


def test_of_one_tenant_the_latest_are_remembered() -> None:
    kept = Decided(3)
    for request in "abcad":
        kept.keep(of("one"), decided(request))
    assert [kept.get(of("one"), each) is not None for each in "abcd"] == [True, False, True, True]
    assert kept.get(of("other"), "a") is None


def test_an_id_in_two_namespaces_is_two_requests_and_by_itself_the_last_of_them() -> None:
    kept, others = Decided(3), ("one", b"m" * 32, 0)
    first, second = decided("a"), decided("a")
    kept.keep(of("one"), first)
    kept.keep(others, second)
    assert kept.get(of("one"), "a") is first and kept.get(others, "a") is second
    assert kept.latest("one", "a") is second and len(kept) == 2
    kept.keep(of("one"), first)
    assert kept.latest("one", "a") is first and kept.latest("two", "a") is None


def test_a_tenant_that_asks_without_end_forgets_its_own() -> None:
    kept = Decided(8)
    for request in "abc":
        kept.keep(of("quiet"), decided(request))
    for number in range(100):
        kept.keep(of("loud"), decided(str(number)))
    assert all(kept.get(of("quiet"), each) for each in "abc")
    assert [kept.get(of("loud"), str(each)) is not None for each in range(94, 100)] == [
        False
    ] + 5 * [True]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=200))
def test_who_has_no_more_than_its_share_loses_nothing(asked: list[tuple[int, int]]) -> None:
    most, kept = 12, Decided(12)
    seen: dict[int, list[int]] = {}
    for tenant, request in asked:
        kept.keep(of(tenant), decided(str(request)))
        mine = seen.setdefault(tenant, [])
        if request in mine:
            mine.remove(request)
        mine.append(request)
        assert len(kept) <= most
        assert kept.get(of(tenant), str(request)), "what was just decided is known"
    for tenant, mine in seen.items():
        if len(mine) <= most // 5:
            assert all(kept.get(of(tenant), str(each)) for each in mine)
