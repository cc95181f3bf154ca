"""Reasons add up to what engines count, and are the true ones where lengths are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.attach.asked import Asked
from kvstore.attach.blocks import Reason
from kvstore.attach.fleet import Fleet, Seen
from kvstore.attach.kinds import VLLM
from kvstore.attach.reasons import Reasons, explain
from tests.attach.replica import replicas

BLOCK = 4
prompts = st.lists(
    st.tuples(
        st.integers(0, 2),  # the engine
        st.integers(0, 4),  # which prefix
        st.integers(0, 9),  # blocks of it
        st.integers(1, 19),  # tokens of its own
        st.integers(0, 3),  # which
        st.sampled_from([1, 2, 9]),  # tokens of the answer
    ),
    max_size=60,
)


@example([(0, 0, 0, 1, 0, 1), (0, 0, 3, 8, 0, 1)], 20)  # the last block might be an answer's
@given(prompts, st.integers(20, 40))
def test_reasons_are_those_of_caches_that_were_asked(
    asked: list[tuple[int, int, int, int, int, int]], pages: int
) -> None:
    some, fleet = replicas(3, pages), Fleet([VLLM] * 3)
    lengths: list[list[int]] = [[], [], []]
    for engine, prefix, blocks, own, which, answer in asked:
        tokens = [100 * prefix + 1 + one // 3 for one in range(BLOCK * blocks)]
        tokens += [5_000 + 100 * which + one for one in range(own)]
        some[engine].serve(tokens, answer, fleet)
        lengths[engine].append(len(tokens))
    fleet.blocks.check()
    for at, one in enumerate(some):
        inferred = explain(one.asked, fleet.seen[at], BLOCK)
        known = explain(one.asked, fleet.seen[at], BLOCK, lengths[at])
        assert inferred.all == known.all == one.asked.missed
        assert inferred.untold == known.untold == 0
        assert known.short == sum(length % BLOCK for length in lengths[at])
        if all(answer == 1 for *_, answer in asked):
            assert asdict(inferred) == asdict(known)
            said = {name: tokens for name, tokens in asdict(known).items() if tokens}
            truth = {**one.why, "short": known.short}
            assert said == {name: tokens for name, tokens in truth.items() if tokens}


counts = st.dictionaries(st.sampled_from(Reason), st.integers(0, 50)).map(Counter)


@given(
    counts,
    counts,
    *[st.integers(0, 2_000) for _ in range(3)],
    st.integers(0, 40),
    st.integers(1, 32),
    st.none() | st.lists(st.integers(1, 100), max_size=20),
)
def test_reasons_add_up_whatever_is_told(
    told: Counter[Reason],
    answers: Counter[Reason],
    missed: int,
    hits: int,
    generated: int,
    number: int,
    block: int,
    lengths: list[int] | None,
) -> None:
    asked = Asked(queries=missed + hits, hits=hits, generated=generated, prompts=number)
    found = explain(asked, Seen(told, answers), block, lengths)
    assert found.all == missed
    assert min(asdict(found).values()) >= 0


@pytest.mark.parametrize(
    ("told", "answers", "asked", "expected"),
    [
        ({}, {}, Asked(), Reasons()),
        ({}, {}, Asked(queries=10, prompts=1), Reasons(short=7, untold=3)),
        (
            {Reason.EVICTED: 2},
            {},
            Asked(queries=40, hits=16, prompts=1),
            Reasons(evicted=16, short=7, untold=1),
        ),
        # A prompt's single block that was taken for an answer's.
        ({}, {Reason.NEVER: 1}, Asked(queries=8, prompts=1, generated=1), Reasons(never=8)),
        # An answer's that was taken for a prompt's.
        (
            {Reason.NEVER: 2},
            {},
            Asked(queries=12, prompts=1, generated=9),
            Reasons(never=8, short=4),
        ),
        # One that was computed again after a preemption, which nobody asked for.
        (
            {Reason.NEVER: 1, Reason.EVICTED: 1},
            {},
            Asked(queries=8, prompts=1, generated=1, preempted=1),
            Reasons(never=8),
        ),
    ],
)
def test_what_contradicts_the_counters_is_put_right(
    told: dict[Reason, int], answers: dict[Reason, int], asked: Asked, expected: Reasons
) -> None:
    assert explain(asked, Seen(Counter(told), Counter(answers)), 8) == expected


def test_what_sglang_says_nothing_of_was_there_where_all_was_heard() -> None:
    asked = Asked(queries=40, prompts=2)
    blocks = Counter({Reason.NEVER: 2})
    silent = Seen(blocks, tells_twice=False)
    assert explain(asked, silent, 8) == Reasons(never=16, here=10, short=14)
    for unheard in (replace(silent, losses=1), replace(silent, unread=1)):
        assert explain(asked, unheard, 8) == Reasons(never=16, short=14, untold=10)
    assert explain(asked, silent, 8, [20, 20]) == Reasons(never=16, here=16, short=8)
