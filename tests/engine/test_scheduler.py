"""A step's plan: decodes first, then the prefill that has begun, then those that are due; nobody is
starved."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.engine.errors import BadRequest, RequestTooLong
from kvstore.engine.scheduler import Limits, Scheduler, plan
from kvstore.engine.sequence import Chunk, Request, Sequence
from kvstore.errors import Invalid


def _sequence(name: str, tokens: int, computed: int = 0, due: float = 0.0) -> Sequence:
    return Sequence(Request(name, (1,) * tokens, 8, due=due), computed_tokens=computed)


def _shown(chunks: list[Chunk]) -> list[tuple[str, int, int, bool]]:
    return [(c.sequence.id, c.start, c.end, c.last) for c in chunks]


def _entering(scheduler: Scheduler) -> str:
    entered = []
    while (one := scheduler.next_in_line()) is not None:
        scheduler.enter(one)
        entered.append(one.id)
    return " ".join(entered)


def test_nothing_runs_when_nobody_is_there() -> None:
    assert plan([], 512) == []


def test_a_short_prompt_is_computed_in_one_chunk_that_yields_a_token() -> None:
    assert _shown(plan([_sequence("a", 10)], 512)) == [("a", 0, 10, True)]


def test_a_long_prompt_is_cut_and_only_its_last_chunk_yields_a_token() -> None:
    assert _shown(plan([_sequence("a", 1100)], 512)) == [("a", 0, 512, False)]
    assert _shown(plan([_sequence("a", 1100, 1024)], 512)) == [("a", 1024, 1100, True)]


def test_a_prompt_with_a_cached_prefix_starts_after_it() -> None:
    assert _shown(plan([_sequence("a", 200, 128)], 512)) == [("a", 128, 200, True)]


def test_decodes_go_before_an_older_prefill() -> None:
    running = [_sequence("old", 600), _sequence("one", 90, 89), _sequence("two", 70, 69)]
    assert _shown(plan(running, 100)) == [
        ("one", 89, 90, True),
        ("two", 69, 70, True),
        ("old", 0, 98, False),
    ]


def test_prefills_that_say_nothing_share_what_is_left_by_age() -> None:
    running = [_sequence("a", 60), _sequence("b", 60), _sequence("c", 60)]
    assert _shown(plan(running, 100)) == [("a", 0, 60, True), ("b", 0, 40, False)]


def test_of_prefills_that_have_not_begun_the_one_that_is_due_is_next() -> None:
    running = [_sequence("late", 60, due=9.0), _sequence("soon", 60, due=2.0)]
    assert _shown(plan(running, 100)) == [("soon", 0, 60, True), ("late", 0, 40, False)]


def test_a_prefill_that_has_begun_ends_before_another_begins() -> None:
    running = [_sequence("soon", 60, due=1.0), _sequence("begun", 900, 512, due=9.0)]
    assert _shown(plan(running, 100)) == [("begun", 512, 612, False)]


@given(
    shapes=st.lists(
        st.integers(1, 300).flatmap(
            lambda n: st.tuples(st.just(n), st.integers(0, n - 1), st.floats(0, 9))
        ),
        min_size=1,
        max_size=20,
    ),
    budget=st.integers(20, 600),
)
def test_any_plan_keeps_the_budget_and_leaves_no_decode_out(
    shapes: list[tuple[int, int, float]], budget: int
) -> None:
    running = [_sequence(str(i), *shape) for i, shape in enumerate(shapes)]
    chunks = plan(running, budget)
    assert sum(c.end - c.start for c in chunks) == min(budget, sum(s.remaining for s in running))
    planned = {c.sequence.id for c in chunks}
    assert len(planned) == len(chunks)
    assert all(s.id in planned for s in running if s.remaining == 1)
    first = min(
        (s for s in running if s.remaining > 1),
        key=lambda s: (not s.begun, s.request.due),
        default=None,
    )
    assert first is None or first.id in planned or budget <= len(running)
    for c in chunks:
        assert c.start == c.sequence.computed_tokens < c.end <= len(c.sequence.tokens)
        assert c.last == (c.end == len(c.sequence.tokens))


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (Request("a", (), 4), BadRequest, "no tokens"),
        (Request("a", (1,), 0), BadRequest, "max_new_tokens"),
        (Request("a", (1, 50), 4), BadRequest, r"0\.\.49"),
        (Request("a", (-1,), 4), BadRequest, "token ids"),
        (Request("a", (1,) * 61, 40), RequestTooLong, "61 prompt and 40 new"),
    ],
)
def test_a_request_that_can_never_run_is_refused_at_once(
    asked: Request, error: type[Exception], said: str
) -> None:
    scheduler = Scheduler(Limits(max_request_tokens=100, vocab_size=50))
    with pytest.raises(error, match=said):
        scheduler.add(asked)
    assert not scheduler.waiting


def test_an_id_in_use_is_refused_until_it_is_done() -> None:
    scheduler = Scheduler(Limits())
    first = scheduler.add(Request("a", (1,), 4))
    with pytest.raises(BadRequest, match="already"):
        scheduler.add(Request("a", (1,), 4))
    scheduler.enter(first)
    with pytest.raises(BadRequest, match="already"):
        scheduler.add(Request("a", (1,), 4))
    scheduler.remove(first)
    scheduler.add(Request("a", (1,), 4))


def test_those_that_wait_enter_as_they_are_due_and_equals_as_they_came() -> None:
    scheduler = Scheduler(Limits())
    for name, due in (("a", 5.0), ("b", 1.0), ("c", 5.0), ("d", 0.5), ("e", 1.0)):
        scheduler.add(Request(name, (1,), 4, due=due))
    assert _entering(scheduler) == "d b e a c" and not scheduler.waiting


def test_what_a_prompt_begins_with_enters_before_it_the_shortest_first() -> None:
    """A conversation's turns that all wait: of each only what is new was reckoned, so the last is
    due first."""
    scheduler = Scheduler(Limits())
    scheduler.add(Request("another", (1, 9), 4, due=3.0))
    for turn, due in ((3, 8.0), (5, 5.0), (9, 2.0)):
        scheduler.add(Request(f"turn-{turn}", tuple(range(1, 1 + turn)), 4, due=due))
    scheduler.add(Request("soon", (8,), 4, due=1.0))
    assert _entering(scheduler) == "soon turn-3 turn-5 turn-9 another"


def test_nobody_is_overtaken_by_what_comes_later_or_shares_no_kv_or_is_computed_elsewhere() -> None:
    scheduler = Scheduler(Limits())
    scheduler.add(Request("salted", (1, 2), 4, due=2.0, salt="another"))
    scheduler.add(Request("other", (2, 2), 4, due=3.0))
    scheduler.add(Request("first", (1, 2, 3), 4, due=1.0))
    scheduler.add(Request("later", (1,), 4, due=4.0))
    assert _entering(scheduler) == "first salted other later"
    scheduler = Scheduler(Limits())
    scheduler.add(Request("begins", (1, 2), 4, due=2.0))
    scheduler.add(Request("follows", (1, 2, 3), 4, due=1.0, follows=True))
    assert _entering(scheduler) == "follows begins"


def test_nobody_enters_a_full_running_set() -> None:
    scheduler = Scheduler(Limits(max_running=1))
    first, second = (scheduler.add(Request(name, (1,), 4)) for name in "ab")
    assert scheduler.next_in_line() is first
    scheduler.enter(first)
    assert scheduler.next_in_line() is None
    scheduler.remove(first)
    assert scheduler.next_in_line() is second


def test_more_sequences_than_a_step_has_tokens_are_refused() -> None:
    with pytest.raises(Invalid, match="max_running 9"):
        Limits(max_batch_tokens=8, max_running=9)


def test_a_prompt_enters_when_a_step_has_room_for_it_and_a_follower_at_once() -> None:
    scheduler = Scheduler(Limits(max_batch_tokens=64))
    first = scheduler.add(Request("first", (1,) * 100, 4))
    second = scheduler.add(Request("second", (1,) * 100, 4))
    follower = scheduler.add(Request("follower", (1,) * 100, 4, follows=True))
    scheduler.enter(first)
    assert scheduler.next_in_line() is follower
    scheduler.enter(follower)
    follower.loading = True
    assert scheduler.next_in_line() is None
    first.computed_tokens = 64
    assert scheduler.next_in_line() is second


def test_one_of_whose_prompt_more_comes_waits_a_step_and_is_not_overtaken() -> None:
    scheduler = Scheduler(Limits(max_batch_tokens=64))
    running = scheduler.add(Request("running", (1,) * 50, 4))
    alike = scheduler.add(Request("alike", (1,) * 40, 4))
    scheduler.add(Request("other", (2,) * 40, 4))
    follower = scheduler.add(Request("follower", (1,) * 40, 4, follows=True))
    scheduler.enter(running)

    def comes(sequence: Sequence, some: Iterable[Sequence]) -> bool:
        return sequence is alike and any(one.computed_tokens < 40 for one in some)

    assert scheduler.next_in_line(comes) is follower
    scheduler.enter(follower)
    assert scheduler.next_in_line(comes) is None
    running.computed_tokens = follower.computed_tokens = 40
    assert scheduler.next_in_line(comes) is alike
