"""Requests that are not to be sent to some engines: who is chosen then, and what stays."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.errors import Unavailable
from tests.conductor.crews import WHOSE, Rig, ask, chain

A, B = "127.0.0.1:7501", "127.0.0.1:7502"


def of(*names: str, **fields: object) -> Rig:
    """Engines whose addresses are their names, in capitals above."""
    rig = Rig()
    for name in names:
        rig.engine(name, address={"a": A, "b": B}[name], **fields)
    return rig


def test_a_prompt_is_not_sent_where_it_is_not_to_go_whatever_is_there() -> None:
    rig = of("a", "b")
    rig.node("node of a", chain(1))
    assert rig.sent_to("plain") == "a"
    assert {rig.sent_to(f"{n}", not_at=frozenset({A})) for n in range(5)} == {"b"}
    assert rig.sent_to("again") == "a", "it was so for those alone"
    rig.check()


def test_what_is_explained_has_no_word_of_them() -> None:
    rig = of("a", "b")
    decision = rig.scheduler.consider(WHOSE, ask(not_at=frozenset({A})), rig.now)
    assert [one.facts.engine_id for one in decision.considered] == ["b"]


def test_where_all_are_such_nobody_is_named_and_their_room_is_as_before() -> None:
    rig = of("a", "b")
    room = rig.scheduler.crew(WHOSE)[0].fleet.engines["room"].copy()
    with pytest.raises(Unavailable, match="not_at"):
        rig.schedule(not_at=frozenset({A, B}))
    assert np.array_equal(rig.scheduler.crew(WHOSE)[0].fleet.engines["room"], room)
    assert rig.sent_to() in "ab"
    rig.check()


def test_nobody_is_to_decode_it_there_either() -> None:
    rig = Rig()
    rig.engine("prefills", decode=None)
    for name, address in (("a", A), ("b", B)):
        rig.engine(name, address=address, prefill=None)
    for number in range(5):
        decode = rig.schedule(f"{number}", not_at=frozenset({A})).decode
        assert decode is not None and decode.facts.engine_id == "b"
    with pytest.raises(Unavailable, match="not_at"):
        rig.schedule("none", not_at=frozenset({A, B}))


def test_what_no_engine_has_room_for_is_said_as_ever() -> None:
    rig = of("a", "b", room_tokens=512)
    with pytest.raises(Unavailable, match="the largest has room for 512 tokens"):
        rig.schedule(not_at=frozenset({A}))


def test_addresses_that_are_nobodys_count_nothing() -> None:
    rig = of("a")
    assert rig.sent_to(not_at=frozenset({"http://127.0.0.1:1", B})) == "a"
