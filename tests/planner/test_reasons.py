"""Why a plan is as it is: what is said to be short is what is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvstore.cli import plan_simulate
from kvstore.planner import presets
from kvstore.planner.answers import Answers, Memory, answer
from kvstore.planner.outcome import Hits
from kvstore.planner.policies import OURS, named
from kvstore.planner.reasons import why
from kvstore.planner.replay import replay
from tests.planner.clusters import apart, cluster


@pytest.fixture(scope="module")
def answers() -> Answers:
    load = apart(np.arange(40) * 0.25, [2_000] * 40, output=20)
    return answer(load, cluster(1, 1, ttft_seconds=2.0, tpot_seconds=0.05), OURS, (), 1, int)


def at_highest(answers: Answers, share: float, **changes: Any) -> Answers:
    told = answers.at_highest
    assert told is not None
    ended = dict.fromkeys(told.ended, 0) | {"refused": 41, "expired": 8}
    ended["served"] = round(share * told.requests)
    changed = replace(told, share=share, slow=0, ended=ended, **changes)
    return replace(answers, at_highest=changed)


def test_prompts_that_were_turned_away_while_prefill_idled_found_no_room_to_decode(
    answers: Answers,
) -> None:
    said = why(at_highest(answers, prefill_busy=0.39, decode_full=0.66, share=0.9))
    assert "Beyond that, decoding is what is short: KV fills 66% of its engines' room" in said
    assert "49 requests found none" in said
    said = why(at_highest(answers, prefill_busy=0.97, decode_full=0.66, share=0.9))
    assert "Beyond that, prefill is what is short: its engines work 97%" in said


def test_a_load_that_is_over_before_its_queue_is_long_is_not_called_enough_for_good(
    answers: Answers,
) -> None:
    curve = replace(answers.curves[0], highest=0.9 * answers.outcome.rate)
    said = why(replace(answers, curves=(curve,)))
    assert "for as long as this load lasts" in said and "times as fast" not in said
    assert f"were it to go on, {curve.highest:.2f} requests a second" in said
    never = why(replace(answers, curves=(replace(curve, highest=0.0),), at_highest=None))
    assert "were it to go on, none at all" in never
    assert "it could be" in why(answers) and "for as long as" not in why(answers)


def test_policies_that_are_level_are_not_told_as_one_that_leads(answers: Answers) -> None:
    mine = answers.curves[0]
    rivals = [replace(mine, policy=name, highest=2.0) for name in ("random", "dynamo")]
    said = why(replace(answers, curves=(mine, *rivals)))
    assert "Of the other policies 2 come alike highest, at 2.00" in said
    rivals.append(replace(mine, policy="llm-d", highest=3.0))
    said = why(replace(answers, curves=(mine, *rivals)))
    assert "Of the other policies llm-d comes highest, at 3.00" in said


def test_where_nobody_is_turned_away_first_tokens_that_are_late_are_not_called_a_slow_pace(
    answers: Answers,
) -> None:
    load, strict = apart(np.arange(40) * 0.01, [8_000] * 40, output=20), cluster(ttft_seconds=0.5)
    late = replay(load, strict, named("raw-round-robin"), 1)
    assert late.ended["served"] == 40 and late.share < 0.1 and late.slow == 0
    assert "prefill is what is short" in why(replace(answers, outcome=late))
    slow = replay(load, replace(strict, ttft_seconds=100, tpot_seconds=1e-4), OURS, 1)
    assert slow.slow == slow.ended["served"] > 0
    assert "the pace of tokens is what is short" in why(replace(answers, outcome=slow))


def test_a_pool_that_was_given_no_memory_is_not_told_that_nothing_can_be_found(
    answers: Answers,
) -> None:
    assert "however much is kept: a pool has nothing to give here" in why(answers)
    said = why(replace(answers, hits_max=0.975))
    assert "97.5% of prompt tokens were in an earlier one, and 0 GB of DRAM a host keep" in said
    assert "nothing to give" not in said


def of_memory(answers: Answers, own: tuple[float, float], *sizes: tuple[float, float]) -> str:
    """What is said where of what is prefilled so much is found, and so many are in time, and with
    0, 1, 2 GB and so on a host."""
    some = tuple(Memory(n * 10**9, 0, *one, 1.0) for n, one in enumerate(sizes))
    told = replace(answers.outcome, hits=Hits(own[0], 0.0, 0.0), share=own[1])
    return why(replace(answers, hits_max=0.95, outcome=told, memory=some))


def test_memory_that_halves_requests_in_time_is_not_said_to_do_as_well(answers: Answers) -> None:
    """Who is let in has most of it found: who is not is in no share of hits."""
    own = (0.929, 0.379)
    said = of_memory(answers, own, (0.0, 0.001), (0.944, 0.198), (0.925, 0.376), own, (0.931, 0.38))
    assert "More DRAM would not help" in said and "2 GB a host do as well" in said
    said = of_memory(answers, own, (0.0, 0.001), (0.944, 0.198), own, (0.931, 0.38))
    assert "2 GB a host do as well" in said
    assert "92.9% of the prompt tokens that were prefilled are found" in said


def test_memory_of_less_than_a_gigabyte_is_not_called_none(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    least, enough = Memory(0, 0, 0.0, 0.001, 1.0), Memory(409_600_000, 0, 0.5, 0.9, 1.0)
    told = replace(answers.outcome, hits=Hits(0.5, 0.0, 0.0), share=0.9)
    some = replace(answers, hits_max=0.95, outcome=told, memory=(least, enough))
    assert "0.41 GB a host do as well" in why(some)
    more = replace(enough, share=0.95)
    assert "with 0.41 GB a host (+5.0" in why(replace(some, memory=(least, more)))
    plan_simulate._tell_memory(some)
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if " GB " in line]
    assert rows[:2] == [["0", "GB"], ["0.41", "GB"]]


def test_memory_that_brings_more_requests_in_time_pays_whatever_is_found(answers: Answers) -> None:
    own, most = (0.854, 0.347), (0.84, 0.475)
    said = of_memory(answers, own, (0.0, 0.029), own, most)
    assert "More DRAM pays" in said and "2 GB a host (+12.8 points in time)" in said
    found_more = of_memory(answers, own, (0.0, 0.029), own, (0.9, 0.35))
    assert "More DRAM pays" in found_more and "90.0% with 2 GB a host (+0.3" in found_more
    assert "would not help" in of_memory(answers, own, (0.0, 0.029), own, (0.9, 0.3))


@pytest.mark.parametrize(("prefill", "decode"), [(2, 2), (1, 3), (3, 1)])
def test_links_that_carry_all_they_can_are_what_is_short_and_no_faster_ones_are(
    answers: Answers, prefill: int, decode: int
) -> None:
    load = apart(np.arange(240) / 6, [8_192] * 240, output=20)
    few = cluster(prefill, decode, fabric=presets.LINKS["tcp-10"], ttft_seconds=10.0)
    told = replay(load, few, OURS, 1)
    assert told.share < 0.5 and told.links_busy > 0.9
    said = why(replace(answers, outcome=told))
    assert "the hosts' links are what is short: they carry" in said
    assert "of what they can" in said and "prefill is what is short" not in said
    fast = replay(load, replace(few, fabric=presets.LINKS["rdma-200"]), OURS, 1)
    assert fast.links_busy < 0.5
    assert "prefill is what is short" in why(replace(answers, outcome=fast))
