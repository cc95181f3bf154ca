"""Engines that die in the middle of a load: nobody is forgotten, what was there is done again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import ConfigError
from kvstore.kernels import sim_world
from kvstore.kernels.sim_world import World
from kvstore.planner import outcome, world
from kvstore.planner.cluster import Cluster, Failure, Pool, Role
from kvstore.planner.load import Load
from kvstore.planner.policies import OURS, POLICIES, Policy, named
from kvstore.planner.replay import ran, replay
from tests.planner.clusters import A100, apart, cluster, same

BOTH = (Pool(Role.MIXED, 1, A100),)


def died(load: Load, healthy: Cluster, *failures: Failure, policy: Policy = OURS) -> World:
    """After the last has ended, with nothing left anywhere."""
    found = ran(load, replace(healthy, failures=failures), policy, 1)
    world.check(found)
    return found


def test_prompts_of_an_engine_that_died_are_prefilled_elsewhere() -> None:
    load = apart(np.linspace(0, 2, 40), [16_000] * 40)
    healthy, found = died(load, cluster(2)), died(load, cluster(2), Failure(Role.PREFILL, 0, 3.0))
    before = healthy.requests["engine"] == 0
    assert before.any() and (found.requests["status"] == sim_world.SERVED).all()
    late = found.requests["prefilled"] > 3.0
    assert (found.requests["engine"][late] == 1).all() and (found.requests["engine"] == 0).any()
    assert outcome.of(found).ttft.mean > 1.2 * outcome.of(healthy).ttft.mean  # type: ignore[union-attr]


def test_one_that_comes_back_is_used_again_with_nothing_in_its_memory() -> None:
    load = same(40, 1.0, 4_096)
    kept = cluster(1, dram_bytes=10**11)
    found = died(load, kept, Failure(Role.PREFILL, 0, 20.2, 0.5))
    computed = found.requests["reused"] == 0
    assert np.flatnonzero(computed).tolist() == [0, 21]
    assert (found.requests["status"] == sim_world.SERVED).all()


def test_what_was_being_decoded_goes_on_elsewhere_behind_its_tokens() -> None:
    load = apart([0.0, 0.0], [4_000, 4_000], output=400)
    healthy = died(load, cluster(1, 2)).requests
    at = float(healthy["first_token"].max() + healthy["finished"].min()) / 2
    found = died(load, cluster(1, 2), Failure(Role.DECODE, 0, at)).requests
    assert sorted(found["made"] > 0) == [False, True]
    (again,) = found[found["made"] > 0]
    assert (again["tokens"] + again["output"], again["tokens"] - again["made"]) == (4_400, 4_000)
    assert 100 < again["made"] < 300 and again["finished"] > healthy["finished"].max()
    assert found["first_token"].tolist() == healthy["first_token"].tolist(), "they had them"


def test_who_had_come_in_a_step_that_never_ended_keeps_its_prefill_s_token() -> None:
    load, one = apart([0.0, 1.0], [4_000, 4_000], output=400), cluster()
    at = float(died(load, one).requests["first_token"][1]) + 1e-6
    found = died(load, one, Failure(Role.DECODE, 0, at, 0.5)).requests
    assert (found["made"][1], found["tokens"][1]) == (1, 4_001)


def test_parked_kv_dies_with_the_host_that_prefilled_it() -> None:
    load = apart([0.0, 0.01], [4_000, 4_000], output=400)
    one = cluster(2, 1, tpot_seconds=0.006)  # one at a time
    healthy = died(load, one).requests
    first, second = np.argsort(healthy["first_token"])
    assert healthy["first_token"][second] >= healthy["finished"][first], "it waits in the pool"
    host, at = int(healthy["engine"][second]), float(healthy["first_token"][first]) + 0.05
    found = died(load, one, Failure(Role.PREFILL, host, at)).requests
    assert healthy["prefilled"][second] < at < found["prefilled"][second]


def test_where_nobody_is_left_requests_are_refused_or_lost() -> None:
    load = apart(np.arange(20.0), [2_000] * 20, output=100)
    told = outcome.of(died(load, cluster(1, 1), Failure(Role.PREFILL, 0, 9.5)))
    assert told.ended["served"] == 10 and told.ended["refused"] == 10
    told = outcome.of(died(load, cluster(1, 1), Failure(Role.DECODE, 0, 9.1)))
    assert told.ended["served"] + told.ended["lost"] + told.ended["expired"] == 20
    assert told.ended["lost"] and told.ended["served"] >= 8


def test_everybody_waits_for_one_that_comes_back() -> None:
    load = apart(np.arange(20.0), [2_000] * 20, output=100)
    told = outcome.of(died(load, cluster(1, 1), Failure(Role.DECODE, 0, 9.1, 5.0)))
    assert told.ended["served"] == 20 and told.ttft is not None and told.ttft.p99 > 4.0


def test_who_has_been_decoded_for_long_goes_on_at_once_where_all_are_idle() -> None:
    """Its first token came in time long ago: no target refuses it now."""
    one = cluster(1, 2, ttft_seconds=2.0)
    load = apart([0.0], [4_000], output=2_000)
    (healthy,) = died(load, one).requests
    assert healthy["finished"] > 10.0
    both = (Failure(Role.DECODE, number, 10.0, 1.0) for number in (0, 1))
    (found,) = died(load, one, *both).requests
    assert found["status"] == sim_world.SERVED and found["made"] > 100


@pytest.mark.parametrize("role", [Role.PREFILL, Role.MIXED])
def test_an_engine_has_worked_on_a_prompt_only_until_it_died(role: Role) -> None:
    load = apart([0.0, 0.02], [64_000, 100])
    one = cluster() if role is Role.PREFILL else cluster(pools=BOTH)
    found = died(load, one, Failure(role, 0, 0.01))
    assert found.engines["busy_seconds"][0] == pytest.approx(0.01)
    told = outcome.of(found)
    assert told.ended["lost"] == told.ended["refused"] == 1
    assert told.prefill_busy <= 1


def test_a_prompt_that_waited_for_a_step_s_end_when_its_engine_died_was_not_worked_on() -> None:
    load, both = apart([0.0, 3.0, 3.1], [64_000, 16_000, 100], output=2_000), cluster(pools=BOTH)
    first = float(died(load, both).requests["prefilled"][0])
    load = replace(load, arrival=np.array([0.0, first + 1.0003, first + 1.01]))
    found = died(load, both, Failure(Role.MIXED, 0, first + 1.0004))
    assert found.engines["busy_seconds"][0] <= first + 1.0004 + 1e-9


def test_kv_of_a_sequence_whose_engine_died_is_held_nowhere_until_it_is_let_in_again() -> None:
    load, one = apart([0.0], [4_000], output=2_000), cluster()

    def held(*failures: Failure) -> float:
        """Share of the room, times seconds."""
        found = died(load, one, *failures)
        return outcome.of(found).decode_full * float(found.requests["finished"].max())

    assert 0 < held(Failure(Role.DECODE, 0, 5.0, 1_000.0)) < 1.1 * held()


@pytest.mark.parametrize("name", ["mooncake", "raw-mooncake", "raw-random", "sglang"])
def test_under_every_policy_what_nobody_can_decode_waits_for_one_that_comes_back(name: str) -> None:
    load = apart([0.0, 0.0], [4_000, 4_000], output=400)
    one = cluster(1, 1, ttft_seconds=30.0)
    assert died(load, one).requests["finished"].min() > 1.5
    found = died(load, one, Failure(Role.DECODE, 0, 1.5, 3.0), policy=named(name)).requests
    assert (found["status"] == sim_world.SERVED).all() and (found["made"] > 0).all()


@pytest.mark.parametrize("name", ["raw-mooncake", "raw-random"])
def test_without_a_gate_everybody_waits_however_long_nobody_decodes(name: str) -> None:
    load = apart(np.arange(20.0), [2_000] * 20, output=100)
    one = cluster(1, 1, ttft_seconds=2.0)
    told = outcome.of(died(load, one, Failure(Role.DECODE, 0, 9.1, 6.0), policy=named(name)))
    assert told.ended["served"] == 20 and told.share < 1.0


FAILURES = st.lists(
    st.builds(
        Failure,
        st.sampled_from([Role.PREFILL, Role.DECODE]),
        st.integers(0, 1),
        st.floats(0.0, 12.0),
        st.one_of(st.just(float("inf")), st.floats(0.01, 5.0)),
    ),
    max_size=5,
)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=15, deadline=None)
@given(failures=FAILURES, seed=st.integers(0, 100), tight=st.booleans())
def test_whatever_dies_every_request_ends_and_nothing_is_left(
    name: str, failures: list[Failure], seed: int, tight: bool
) -> None:
    dice = np.random.default_rng(seed)
    count = 30
    arrivals, tokens = np.sort(dice.uniform(0, 10, count)), dice.integers(100, 20_000, count)
    limits = {"ttft_seconds": 3.0, "tpot_seconds": 0.01} if tight else {}
    load = apart(arrivals, tokens, output=int(dice.integers(1, 300)))
    found = died(load, cluster(2, 2, dram_bytes=10**10, **limits), *failures, policy=named(name))
    sizes = found.requests["tokens"] + found.requests["output"]
    assert (sizes == load.input_tokens + load.output_tokens).all(), "no token is lost or made twice"
    both = [replace(one, role=Role.MIXED) for one in failures]
    died(load, cluster(2, 2, dram_bytes=10**10, **limits).together(), *both, policy=named(name))


def test_an_engine_that_there_is_not_cannot_die() -> None:
    with pytest.raises(ConfigError, match="decode engine 3: there are 2, the first is 0"):
        cluster(1, 2, failures=(Failure(Role.DECODE, 3, 1.0),))
    with pytest.raises(ConfigError, match=r"failure.at = -1.0"):
        Failure(Role.PREFILL, 0, -1.0)


def test_without_failures_all_is_as_it_was() -> None:
    load = apart(np.linspace(0, 2, 40), [16_000] * 40)
    far = Failure(Role.PREFILL, 0, 9_999.0)
    assert replay(load, cluster(2), OURS, 1) == replay(load, cluster(2, failures=(far,)), OURS, 1)
