from __future__ import annotations

import pytest

from kvstore.errors import Unavailable
from kvstore.gateway import known
from kvstore.gateway.known import Known
from kvstore.gateway.needs import Needs


def turns(engines: Known) -> list[str]:
    """All that it knows, each once."""
    gone: set[str] = set()
    while True:
        try:
            gone.add(engines.next(gone, Needs()))
        except Unavailable:
            return sorted(gone)


def test_of_too_many_those_are_known_that_were_heard_of_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "KNOWN_MAX", 3)
    engines = Known(["fixed:1"])
    for one in ("a:1", "b:1", "a:1", "c:1", "d:1", "a:1"):
        engines.learn(one)
    assert turns(engines) == ["a:1", "d:1", "fixed:1"]


def test_those_that_others_know_of_have_their_turns_behind_the_others_and_stay_in_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "KNOWN_MAX", 3)
    engines, under = Known([]), Needs(adapter="french")
    assert not engines.any(under)
    engines.learn("a:1")
    engines.hear(["http://b:1", "a:1"])
    engines.hear(["c:1", "d:1"])
    assert [engines.next(set(), Needs()) for _ in range(3)] == ["a:1", "http://b:1", "c:1"]
    assert engines.any(under) and engines.next(set(), under) == "http://b:1"
    with pytest.raises(Unavailable):
        engines.next({"http://b:1"}, under)


def test_those_that_it_was_configured_with_stay_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "KNOWN_MAX", 2)
    engines = Known(["x:1", "y:1", "z:1"])
    for one in ("a:1", "y:1"):
        engines.learn(one)
    assert turns(engines) == ["x:1", "y:1", "z:1"]
    assert not engines.lost("x:1") and turns(engines) == ["x:1", "y:1", "z:1"]


def test_one_that_was_learned_of_and_has_other_weights_by_now_is_sent_nothing() -> None:
    engines = Known(["fixed:1"])
    for one in ("stays:1", "changed:1"):
        engines.learn(one)
    engines.forget(frozenset())
    assert turns(engines) == ["changed:1", "fixed:1", "stays:1"]
    engines.forget(frozenset({"changed:1", "fixed:1", "unmet:1"}))
    assert turns(engines) == ["fixed:1", "stays:1"]
