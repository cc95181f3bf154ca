"""An answer ends before the first of the texts that it is to stop at, however it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore.gateway.http.stops import Stops

SHORT = st.text("ab", max_size=12)
TEXTS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(st.lists(SHORT), TEXTS)
def test_all_that_stands_before_the_first_is_given_out_and_nothing_behind(
    pieces: list[str], texts: list[str]
) -> None:
    stops, whole = Stops(texts), "".join(pieces)
    given_out = ""
    for piece in pieces:
        given_out += stops.add(piece)
        assert not any(one in given_out for one in texts), "a part of one was given out"
    found = [whole.index(one) for one in texts if one in whole]
    assert stops.met == bool(found)
    # Whichever is whole first ends it, though another may begin before.
    if not found:
        assert given_out + stops.end() == whole
    else:
        assert stops.end() == "" and whole.startswith(given_out)
        assert any(whole.startswith(one, len(given_out)) for one in texts)


def test_what_may_be_the_beginning_of_one_waits_for_the_rest() -> None:
    stops = Stops(["END"])
    assert [stops.add(one) for one in ("a E", "N", "x", "EN")] == ["a ", "", "ENx", ""]
    assert stops.add("D and more") == "" and stops.met
    assert stops.add("more") == stops.end() == ""
    assert Stops([]).add("all") == "all"
