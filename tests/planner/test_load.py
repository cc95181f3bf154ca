"""A load keeps its promises through all that is done to it, and `check` sees when one is broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvstore.errors import Invalid, InvariantError
from kvstore.planner.load import MOMENT, Load
from tests.planner.loads import PROVEN, Told, hit_tokens_by_tokens, load_of, told

GOOD = load_of([(1, 2, 3), (1, 2, 4, 5), (9,)], [0, 1, 1])


@PROVEN
@given(told())
def test_a_load_of_real_prompts_is_sound(case: Told) -> None:
    case.load.check()
    assert len(case.load) == len(case.prompts)


@PROVEN
@given(told())
def test_the_largest_hit_rate_is_what_comparing_all_tokens_gives(case: Told) -> None:
    found = hit_tokens_by_tokens(case.prompts, case.load.block_tokens)
    total = sum(map(len, case.prompts))
    assert case.load.describe().hit_rate_max == pytest.approx(found / total)


def test_short_blocks_are_never_found_again_and_whole_ones_are() -> None:
    assert load_of([(1,), (1,)]).describe().hit_rate_max == 0
    assert load_of([(1, 2, 3), (1, 2, 3)]).describe().hit_rate_max == 2 / 6
    assert load_of([(1, 2), (3, 2), (1, 2, 3, 2)]).describe().hit_rate_max == 2 / 8


@PROVEN
@given(told(), st.data())
def test_a_window_is_the_load_of_the_requests_in_it(case: Told, data: st.DataObject) -> None:
    load = case.load
    ends = st.sampled_from(load.arrival.tolist()) | st.floats(0, 2e7)
    start_s, end_s = sorted((data.draw(ends), data.draw(ends)))
    inside = np.flatnonzero((load.arrival >= start_s) & (load.arrival < end_s)).tolist()
    assume(inside)
    window = load.window(start_s, end_s)
    window.check()
    arrival = load.arrival[inside] - load.arrival[inside[0]]
    answers = load.output_tokens[inside].tolist()
    prompts = [case.prompts[i] for i in inside]
    assert window == load_of(prompts, arrival.tolist(), load.block_tokens, answers)


@PROVEN
@given(told(), st.floats(1, 1e4))
def test_a_load_that_is_to_last_is_repeated_with_blocks_of_its_own(
    case: Told, seconds: float
) -> None:
    load = case.load
    lasting = load.lasting(seconds, requests_max=50)
    lasting.check()
    times, rest = divmod(len(lasting), len(load))
    assert rest == 0 and (times == 1 or len(lasting) <= 50)
    span = float(load.arrival[-1])
    gap = span / max(1, len(load) - 1)
    lasts = lasting.arrival[-1] + gap >= seconds * (1 - 1e-9)
    assert lasts or span < MOMENT or len(lasting) + len(load) > 50
    assert times == 1 or span + gap < seconds
    before, after = load.describe(), lasting.describe()
    assert after.hit_rate_max == pytest.approx(before.hit_rate_max)
    assert after.rate == pytest.approx(before.rate)


@PROVEN
@given(told(), st.floats(1e-3, 1e3))
def test_a_scaled_load_is_the_same_requests_at_another_pace(case: Told, times: float) -> None:
    scaled = case.load.scaled(times)
    scaled.check()
    assert np.allclose(scaled.arrival * times, case.load.arrival)
    assert replace(scaled, arrival=case.load.arrival) == case.load


def test_a_window_of_the_whole_load_is_the_load() -> None:
    assert GOOD.window(0, 2) == GOOD
    assert GOOD.window(0, 2) != GOOD.window(0, 1)


def test_a_window_ends_before_its_end() -> None:
    assert len(GOOD.window(0, 1)) == 1
    assert len(GOOD.window(1, np.inf)) == 2


@pytest.mark.parametrize("start_s, end_s", [(2, 3), (1, 1), (1, 0), (0.2, 0.8)])
def test_a_window_with_nothing_in_it_is_refused(start_s: float, end_s: float) -> None:
    with pytest.raises(Invalid, match=r"no request in \[.*has them from 0 to 1 s"):
        GOOD.window(start_s, end_s)


@pytest.mark.parametrize("times", [0, -1, np.nan, np.inf, 5e-324])
def test_a_pace_that_is_none_is_refused(times: float) -> None:
    with pytest.raises(Invalid, match="rate_multiplier = "):
        GOOD.scaled(times)


def test_a_summary_says_what_a_load_looks_like() -> None:
    load = load_of([(1,) * 10, (2,) * 20, (3,) * 60], [0, 1, 4], output_tokens=[5, 5, 8])
    summary = load.describe()
    assert (summary.requests, summary.duration_s, summary.rate) == (3, 4.0, 0.5)
    assert (summary.input_tokens.mean, summary.input_tokens.p50) == (30, 20)
    assert summary.input_tokens.p99 == pytest.approx(59.2)
    assert (summary.output_tokens.mean, summary.output_tokens.p50) == (6, 5)


def test_a_load_that_arrives_at_once_has_no_rate() -> None:
    assert load_of([(1,), (2,)], [0, 0]).describe().rate == 0


def array(kind: type[np.generic], *values: float) -> np.ndarray:
    return np.array(values, kind)


BROKEN = {
    "request 2: arrives before": replace(GOOD, arrival=array(np.float64, 0, 2, 1)),
    "request 0: arrives at 1.0 s": replace(GOOD, arrival=array(np.float64, 1, 2, 3)),
    "request 2: has no finite arrival": replace(GOOD, arrival=array(np.float64, 0, 1, np.nan)),
    "request 1: has no token of input": replace(GOOD, input_tokens=array(np.int32, 3, 0, 1)),
    "request 2: has no token of output": replace(GOOD, output_tokens=array(np.int32, 1, 1, 0)),
    "request 0: has not as many blocks": replace(GOOD, input_tokens=array(np.int32, 5, 4, 1)),
    "request 1: has not as many blocks": replace(GOOD, first=array(np.int64, 0, 2, 3, 5)),
    "request 2: has an id that skips": replace(GOOD, blocks=array(np.int64, 0, 1, 0, 2, 4)),
    "request 0: has an id that skips": replace(GOOD, blocks=array(np.int64, 1, 0, 1, 2, 3)),
    "request 1: has an id that skips": replace(GOOD, blocks=array(np.int64, 0, 1, -1, 2, 3)),
    "request 2: block 1 stands .* in request 0": replace(
        GOOD, blocks=array(np.int64, 0, 1, 0, 2, 1)
    ),
    "request 1: block 1 stands .* in request 0": replace(
        GOOD, blocks=array(np.int64, 0, 1, 2, 1, 3)
    ),
    "request 0: block 0 stands .* in request 0": replace(
        GOOD, blocks=array(np.int64, 0, 0, 1, 2, 3)
    ),
    "int64; float64 is wanted": replace(GOOD, arrival=array(np.int64, 0, 1, 1)),
    "int64; int32 is wanted": replace(GOOD, input_tokens=array(np.int64, 3, 4, 1)),
    "columns for": replace(GOOD, output_tokens=array(np.int32, 1, 1)),
    "not all there are": replace(GOOD, blocks=array(np.int64, 0, 1, 0, 2, 3, 4)),
    "0 tokens a block": replace(GOOD, block_tokens=0),
    "0 arrivals": Load(
        2, *(array(kind) for kind in (np.float64, np.int32, np.int32, np.int64)), array(np.int64, 0)
    ),
}


@pytest.mark.parametrize("story", BROKEN)
def test_a_broken_load_fails_its_check_by_name(story: str) -> None:
    GOOD.check()
    with pytest.raises(InvariantError, match=story):
        BROKEN[story].check()


@PROVEN
@given(told(), st.data())
def test_no_block_can_be_put_in_anothers_place_unseen(case: Told, data: st.DataObject) -> None:
    blocks = case.load.blocks.copy()
    often = np.bincount(blocks)[blocks] > 1
    # What stands behind it is behind the same block elsewhere, which gives the exchange away.
    rows = [row - 1 for row in np.flatnonzero(often).tolist() if row not in case.load.first]
    assume(rows and blocks.max() > 0)
    row = data.draw(st.sampled_from(rows))
    others = [one for one in range(int(blocks.max()) + 1) if one != blocks[row]]
    blocks[row] = data.draw(st.sampled_from(others))
    with pytest.raises(InvariantError):
        replace(case.load, blocks=blocks).check()
