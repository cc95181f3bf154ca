"""What engines say counts once: not what they say again, nor what they reuse."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.attach.blocks import Reason
from kvstore.attach.fleet import Fleet
from kvstore.attach.kinds import KINDS, VLLM, Kind
from kvstore.attach.prompts import Use
from kvstore.client.kv_events.messages import Cleared, Event, Removed, Stored

BLOCK = 4
ODD = Stored((100,), None, np.arange(2, dtype=np.uint32), 2)  # of another size


def stored(begin: int, end: int) -> Stored:
    """Blocks from one to another of the one text that there is."""
    names = tuple(range(begin, end))
    ids = np.arange(BLOCK * begin, BLOCK * end, dtype=np.uint32)
    return Stored(names, begin - 1 if begin else None, ids, BLOCK)


def uses(fleet: Fleet) -> list[tuple[int, int]]:
    """Blocks that each prompt had at first, and in all."""
    every = [one for one in fleet.steps if isinstance(one, Use)]
    return [(one.found, fleet.blocks.depth(one.last)) for one in every]


def test_what_vllm_says_that_it_reuses_is_not_computed() -> None:
    """It is told of whole, and before what the prompt computes behind it."""
    fleet = Fleet([VLLM])
    fleet.take(0, 0.0, [stored(0, 10)])
    fleet.take(0, 100.0, [stored(0, 9), stored(9, 10)])
    assert uses(fleet) == [(0, 10), (9, 10)]
    assert fleet.seen[0].prompts == {Reason.NEVER: 10, Reason.HERE: 1}
    fleet.take(0, 200.0, [Removed(tuple(range(10)))])
    assert [number for number in range(10) if fleet.blocks.has(0, number)] == [9]


def test_what_is_reused_is_no_part_of_a_step_and_a_prompt_in_pieces_goes_on_after_it() -> None:
    fleet = Fleet([VLLM])
    fleet.take(0, 0.0, [stored(0, 4)])
    fleet.take(0, 0.1, [stored(4, 8)])
    fleet.take(0, 100.0, [stored(0, 8), stored(8, 12)])
    fleet.take(0, 100.1, [stored(12, 16)])
    fleet.take(0, 100.15, [stored(16, 17)])
    assert uses(fleet) == [(0, 8), (8, 17)] and not fleet.seen[0].answers


def test_what_two_prompts_compute_alike_is_computed_twice() -> None:
    fleet = Fleet([VLLM])
    fleet.take(0, 0.0, [stored(0, 4), stored(0, 4)])
    fleet.take(0, 0.1, [stored(4, 8), stored(4, 8)])
    assert fleet.seen[0].prompts == {Reason.NEVER: 8, Reason.HERE: 8}


def test_what_is_recalled_is_where_it_was_and_does_not_count() -> None:
    fleet = Fleet([VLLM])
    fleet.take(0, 0.0, [stored(0, 4)])
    seen, steps = dict(fleet.seen[0].prompts), list(fleet.steps)
    fleet.lost(0)
    fleet.recall(0, [stored(0, 4)])
    fleet.recall(0, [Removed((3,))])
    assert (fleet.seen[0].prompts, fleet.steps) == (seen, steps)
    assert [fleet.blocks.has(0, number) for number in range(4)] == [True, True, True, False]
    fleet.blocks.check()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_under_way_is_none_the_less_one_where_what_was_before_is_recalled(
    kind: Kind,
) -> None:
    fleet = Fleet([kind])
    before: list[list[Event]] = [[Cleared()], [stored(0, 4)]]
    for at, events in enumerate(before):
        fleet.take(0, float(at), events)
    fleet.lost(0)
    for events in before:
        fleet.recall(0, events)
    fleet.take(0, 3.0, [stored(4, 5)])
    assert uses(fleet) == [(0, 4)]
    assert fleet.seen[0].answers == {Reason.NEVER: 1}


def test_what_is_left_out_is_counted_once_though_it_is_recalled() -> None:
    fleet = Fleet([VLLM])
    fleet.take(0, 0.0, [stored(0, 4), ODD])
    fleet.lost(0)
    fleet.recall(0, [stored(0, 4), ODD])
    assert fleet.blocks.left_out == {"of another size": 1}
