"""Whom a chain's copies go to: little changes as nodes come and go, and all get their part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.replica_choice import Candidate, choose
from kvstore.limits import GiB

NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True)
KEYS = st.binary(min_size=32, max_size=32)


def nodes(names: list[str], free: int = GiB) -> list[Candidate]:
    return [Candidate(name, GiB, free) for name in names]


def chosen(first: bytes, some: list[Candidate], count: int, **options: object) -> list[str]:
    found = choose(first, some, count, options.pop("labels", {}), **options)  # type: ignore[arg-type]
    return [one.node_id for one in found]


@given(KEYS, NAMES, st.integers(1, 6), st.randoms())
def test_the_order_in_which_nodes_are_known_does_not_matter(
    first: bytes, names: list[str], count: int, dice: object
) -> None:
    mixed = nodes(names)
    dice.shuffle(mixed)  # type: ignore[attr-defined]
    found = chosen(first, mixed, count)
    assert found == chosen(first, nodes(names), count)
    assert len(set(found)) == len(found) == min(count, len(names))


@given(KEYS, NAMES, st.integers(1, 6), st.data())
def test_a_node_that_leaves_is_replaced_and_nothing_else_changes(
    first: bytes, names: list[str], count: int, data: st.DataObject
) -> None:
    before = chosen(first, nodes(names), count)
    gone = data.draw(st.sampled_from(names))
    after = chosen(first, nodes([one for one in names if one != gone]), count)
    assert [one for one in before if one != gone] == after[: len(before) - (gone in before)]
    if gone not in before:
        assert after == before


@given(KEYS, NAMES, st.integers(1, 6), st.text(min_size=9, max_size=9))
def test_a_node_that_comes_takes_the_place_of_one_at_most(
    first: bytes, names: list[str], count: int, new: str
) -> None:
    before = chosen(first, nodes(names), count)
    after = chosen(first, nodes([*names, new]), count)
    assert set(after) - set(before) <= {new}
    assert len(set(before) - set(after)) <= 1


@given(KEYS, NAMES, st.integers(2, 4), st.integers(1, 3), st.data())
def test_racks_and_hosts_are_not_used_twice_while_there_is_another(
    first: bytes, names: list[str], count: int, racks: int, data: st.DataObject
) -> None:
    at = {name: data.draw(st.integers(0, racks), label="rack") for name in names}
    some = [replace(one, labels={"rack": f"r{at[one.node_id]}"}) for one in nodes(names)]
    mine = {"rack": "r0", "host": "here"}
    found = choose(first, some, count, mine)
    others = {one.labels["rack"] for one in some} - {"r0"}
    first_ones = [one.labels["rack"] for one in found[: len(others)]]
    assert len(set(first_ones)) == len(first_ones) and "r0" not in first_ones


def test_another_host_goes_before_the_own_and_another_rack_before_both() -> None:
    mine = {"rack": "r1", "host": "h1"}
    same, host, rack = (
        replace(one, labels=labels)
        for one, labels in zip(
            nodes(["a", "b", "c"]),
            [mine, {"rack": "r1", "host": "h2"}, {"rack": "r2", "host": "h3"}],
            strict=True,
        )
    )
    for number in range(50):
        found = chosen(number.to_bytes(32, "big"), [same, host, rack], 3, labels=mine)
        assert found == ["c", "b", "a"]


@given(KEYS, NAMES, st.data())
def test_whoever_holds_what_stands_before_goes_first(
    first: bytes, names: list[str], data: st.DataObject
) -> None:
    holder = data.draw(st.sampled_from(names))
    assert chosen(first, nodes(names), 1, holding={holder}) == [holder]


def test_chains_spread_by_the_room_there_is() -> None:
    some = [Candidate("much", 4 * GiB, 3 * GiB), Candidate("less", 4 * GiB, GiB)]
    some.append(Candidate("full", 4 * GiB, 0))
    total = 4_000
    counts = Counter(
        choose(number.to_bytes(32, "big"), some, 1, {})[0].node_id for number in range(total)
    )
    weights = {"much": 3.0, "less": 1.0, "full": 0.25}
    for name, weight in weights.items():
        due = total * weight / sum(weights.values())
        assert abs(counts[name] - due) < 5 * due**0.5, (name, counts)
