"""What goes between hosts, as a share of what their links can carry."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.core.hardware import Fabric
from kvstore.planner import presets
from kvstore.planner.links import busy
from kvstore.planner.policies import OURS
from kvstore.planner.replay import ran, replay
from tests.planner.clusters import PLAIN, apart, cluster

SHAPE = presets.MODELS["llama-3-8b"]
TOKENS = 8_192
SIZE = TOKENS * SHAPE.kv_bytes_per_token


@pytest.mark.parametrize(("prefill", "decode", "narrow"), [(1, 1, 1), (2, 2, 2), (1, 3, 1)])
def test_it_is_bytes_over_what_hosts_of_the_narrower_role_carry_in_that_time(
    prefill: int, decode: int, narrow: int
) -> None:
    seconds, count = 4.0, 60
    load = apart(np.arange(count) * seconds, [TOKENS] * count)
    told = replay(load, cluster(prefill, decode, fabric=Fabric("slow", 1e9, 1e-5)), PLAIN, 1)
    assert told.carried.all == told.carried.link == count * SIZE
    assert told.links_busy == pytest.approx(SIZE / (narrow * 1e9 * seconds), rel=0.05)


def test_what_is_within_a_domain_is_not_on_links() -> None:
    load = apart(np.arange(20) * 2.0, [TOKENS] * 20)
    told = replay(load, cluster(1, 1, domains=1), OURS, 1)
    assert told.carried.domain == told.carried.all > 0 and told.links_busy == 0.0


def test_what_goes_to_another_rack_takes_as_long_as_that_does() -> None:
    load = apart(np.arange(60) * 4.0, [TOKENS] * 60)
    far = {"racks": 2, "cross_rack_bytes_per_second": 1e9}
    told = replay(load, cluster(2, 1, **far), PLAIN, 1)
    assert told.carried.far == told.carried.link == 30 * SIZE
    assert told.links_busy == pytest.approx((SIZE / 1e9 + SIZE / 25e9) / 8.0, rel=0.05)


def test_hosts_that_decode_carry_what_is_handed_over_and_not_what_is_fetched() -> None:
    found = ran(apart(np.arange(4) * 4.0, [TOKENS] * 4), cluster(4, 1), PLAIN, 1)
    all_handed = busy(found, 400.0, 100.0)
    assert all_handed == pytest.approx(4 * SIZE * found.places["link_seconds"][0] / 100.0)
    found.requests["fetched"][:2] = TOKENS // 512
    assert busy(found, 400.0, 100.0) == pytest.approx(all_handed / 2)
    assert busy(found, 100.0, 400.0) == pytest.approx(all_handed), "all of it leaves the others"
