"""What engines hold in memory of their own is there for each of them alone, and goes with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.conductor import own
from kvstore.conductor.engines import Engine
from kvstore.conductor.explained import explain, reply_of, sentence_of
from kvstore.core.fingerprints import Prints
from kvstore.core.turns import Places
from kvstore.kernels.prefill_price import BLOCKS, FETCHED
from tests.conductor.crews import WHOSE, Rig, ask, chain

NOTHING = chain(0, 0)


def holds(rig: Rig, engine: Engine, prints: Prints) -> None:
    rig.scheduler.own(WHOSE, engine, False, NOTHING, prints)
    rig.check()


def drops(rig: Rig, engine: Engine, prints: Prints) -> None:
    rig.scheduler.own(WHOSE, engine, False, prints, NOTHING)
    rig.check()


def clears(rig: Rig, engine: Engine) -> None:
    rig.scheduler.own(WHOSE, engine, True, NOTHING, NOTHING)
    rig.check()


def there(rig: Rig, prints: Prints) -> dict[str, int]:
    """Leading blocks of a prompt in each engine's own memory, as a decision sees them."""
    crew = rig.scheduler.crew(WHOSE)[0]
    rig.scheduler.consider(WHOSE, ask(prints=prints), rig.now)
    for one in crew.by_id.values():
        assert crew.found.coming[one.number] == crew.own[one.number], "nothing is in flight"
    return {name: int(crew.own[one.number]) for name, one in crew.by_id.items()}


def test_a_prompt_goes_to_the_engine_that_has_its_blocks_itself() -> None:
    rig = Rig()
    engines = {name: rig.engine(name) for name in "abc"}
    holds(rig, engines["b"], chain(1)[:40])
    decision = rig.schedule()
    assert decision.prefill is engines["b"] and decision.own == 40 and decision.there == 0
    assert decision.row is not None and decision.row[BLOCKS] == 40
    split = reply_of(rig.scheduler, decision, False).split
    assert (split.own_blocks, split.there_blocks, split.coming_blocks) == (40, 0, 0)
    assert split.computed_tokens == 1_024 - 40 * 16
    assert "reuses 40 of 64 blocks, 40 of them in its own memory" in sentence_of(decision)
    first, *others = explain(rig.scheduler, decision, False).considered
    assert first.own_blocks == 40 and [one.own_blocks for one in others] == [0, 0]


def test_what_one_engine_has_nobody_fetches_from_it() -> None:
    rig = Rig()
    busy, idle = rig.engine("busy"), rig.engine("idle")
    holds(rig, busy, chain(1))
    rig.in_flight.accepted("long", busy, 10.0, NOTHING, rig.now)
    rig.in_flight.began("long", busy, rig.now)
    decision = rig.schedule()
    assert decision.prefill is idle and decision.own == 0
    assert decision.row is not None and decision.row[BLOCKS] == decision.row[FETCHED] == 0


def test_its_own_blocks_its_nodes_and_those_on_their_way_are_told_apart() -> None:
    rig, prints = Rig(), chain(1)
    engine = rig.engine("a")
    rig.node("node of a", prints[:20])
    rig.node("elsewhere", prints[:50])
    holds(rig, engine, prints[:8])
    rig.in_flight.accepted("before", engine, 0.001, prints[:32], rig.now)
    split = reply_of(rig.scheduler, rig.schedule(), False).split
    assert (split.own_blocks, split.there_blocks, split.coming_blocks) == (8, 12, 12)
    assert split.fetched_blocks == 18


def test_of_its_own_blocks_and_those_it_computes_it_is_told_which_others_have_too() -> None:
    rig, prints = Rig(), chain(1)
    engine = rig.engine("a", decode=None)
    decoder = rig.engine("d", prefill=None)
    holds(rig, engine, prints[:40])
    rig.in_flight.accepted("before", engine, 0.001, prints[:48], rig.now)

    def alone() -> int:
        split = reply_of(rig.scheduler, rig.schedule(), False).split
        return split.own_blocks + split.coming_blocks - split.shared_blocks

    assert alone() == 48
    holds(rig, decoder, prints[:20])
    assert alone() == 28
    rig.node("elsewhere", prints[:45])
    assert alone() == 3
    rig.node("with all", prints)
    assert alone() == 0


def test_what_an_engine_drops_or_clears_is_there_no_more() -> None:
    rig, prints = Rig(), chain(1)
    first, second = rig.engine("a"), rig.engine("b")
    holds(rig, first, prints)
    holds(rig, second, prints[:30])
    drops(rig, first, prints[50:])
    assert there(rig, prints) == {"a": 50, "b": 30}
    clears(rig, first)
    assert there(rig, prints) == {"a": 0, "b": 30}
    holds(rig, first, prints[:5])
    assert there(rig, prints) == {"a": 5, "b": 30}


def test_it_is_forgotten_when_the_engine_leaves_and_room_is_made() -> None:
    rig, prints = Rig(), chain(1)
    engine = rig.engine("a")
    rig.engine("b")
    holds(rig, engine, prints)
    rig.scheduler.leave(WHOSE, engine, rig.now)
    rig.check()
    assert there(rig, prints) == {"b": 0}
    again = rig.engine("a")
    assert there(rig, prints) == {"a": 0, "b": 0}
    holds(rig, again, prints[:3])
    assert there(rig, prints) == {"a": 3, "b": 0}
    rig.scheduler.sweep(rig.now)
    rig.check()


def test_another_crew_s_engine_in_the_same_row_has_nothing_of_it() -> None:
    rig, prints = Rig(), chain(1)
    holds(rig, rig.engine("a"), prints)
    other = ("team", b"m" * 32, 0)
    rig.engine("x", whose=other)
    assert rig.scheduler.consider(other, ask(prints=prints), rig.now).own == 0


@pytest.mark.parametrize("limit", ["ENGINE_BLOCKS_MAX", "places", "_blocks_max"])
def test_blocks_beyond_the_limits_are_not_counted_and_nothing_fails(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    engine = rig.engine("a")
    if limit == "ENGINE_BLOCKS_MAX":
        monkeypatch.setattr(own, limit, 5_000)
    elif limit == "places":
        rig.scheduler._own._places = Places(5_000)
    else:
        monkeypatch.setattr(rig.scheduler._own._index, limit, 5_000)
    for seed in range(20):
        holds(rig, engine, chain(seed, 1_000))
    assert 1_000 <= rig.scheduler._own.count(engine) < 12_000
    assert there(rig, chain(0, 64)) == {"a": 64}
    clears(rig, engine)
    assert rig.scheduler._own.count(engine) == 0


ACTIONS = ("hold", "drop", "clear", "leave", "come", "sweep")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 2),  # engine
        st.integers(0, 3),  # chain
        st.integers(0, 12),  # blocks of it
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_what_is_there_is_what_was_said(steps: list[tuple[str, int, int, int]]) -> None:
    """Chains of which engines hold a beginning each, and let go of the end first."""
    rig = Rig()
    rig.engine("stays")
    engines = {number: rig.engine(f"e{number}") for number in range(3)}
    held = {number: [0] * 4 for number in range(3)}
    chains = [chain(seed, 12) for seed in range(4)]
    for action, number, which, blocks in steps:
        engine, prints = engines.get(number), chains[which]
        if action == "sweep":
            rig.scheduler.sweep(rig.now)
        elif action == "come" and engine is None:
            engines[number] = rig.engine(f"e{number}")
        elif engine is None:
            continue
        elif action == "leave":
            rig.scheduler.leave(WHOSE, engines.pop(number), rig.now)
            held[number] = [0] * 4
        elif action == "clear":
            clears(rig, engine)
            held[number] = [0] * 4
        elif action == "hold":
            holds(rig, engine, prints[:blocks])
            held[number][which] = max(held[number][which], blocks)
        elif action == "drop":
            drops(rig, engine, prints[blocks:])
            held[number][which] = min(held[number][which], blocks)
        rig.check()
    for which, prints in enumerate(chains):
        known = {f"e{number}": held[number][which] for number in engines}
        assert there(rig, prints) == {"stays": 0, **known}


def test_the_check_sees_a_block_that_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    engine = rig.engine("a")
    holds(rig, engine, chain(1))
    monkeypatch.setattr(own.Own, "_give_back", lambda *_: None)
    with pytest.raises(AssertionError):
        drops(rig, engine, chain(1)[9:])


def test_a_thousand_engines_may_hold_one_prefix() -> None:
    rig, prints = Rig(), chain(1)
    engines = [rig.engine(f"e{number}") for number in range(1_000)]
    for number, engine in enumerate(engines):
        rig.scheduler.own(WHOSE, engine, False, NOTHING, prints[: 1 + number % 64])
    rig.check()
    assert np.unique(list(there(rig, prints).values())).tolist() == list(range(1, 65))
