"""Two requests of one tenant that have one id, each in a namespace of its own."""

from __future__ import annotations

from tests.conductor.crews import WHOSE, Rig, ask


def test_where_a_request_of_the_same_id_was_sent_in_another_namespace_says_nothing() -> None:
    rig = Rig()
    others = (WHOSE[0], b"m" * 32, 0)
    for number in range(200):  # hosts that the crew asked below has never heard of
        rig.engine(f"{number}", whose=others)
    rig.scheduler.schedule(others, ask("r"), rig.now)
    mine = rig.engine("mine")
    assert rig.scheduler.place(WHOSE, ask("r"), rig.now).decode is mine


def test_a_request_counts_though_one_of_another_namespace_has_its_id() -> None:
    rig, others = Rig(), (WHOSE[0], b"m" * 32, 0)
    rig.engine("a")
    rig.engine("b", others)
    rig.schedule("r", client="x")
    rig.scheduler.schedule(others, ask("r", client="x"), rig.now)
    mine, theirs = (rig.scheduler.crew(whose)[1].clients for whose in (WHOSE, others))
    assert mine.counted("x") == theirs.counted("x")
    first = rig.scheduler.decided(WHOSE, "r")
    assert first and first.prefill and first.prefill.facts.engine_id == "a"
