"""The scheduler's half where a prefill elsewhere is followed: which are, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.client import KVGroup, KVSpec
from kvstore.engine.connectors.vllm import scheduler as module
from kvstore.engine.connectors.vllm.messages import Loaded, Report
from kvstore.engine.connectors.vllm.scheduler import SchedulerSide
from tests.connectors.vllm.test_scheduler import Late, ready, request, side


@pytest.mark.parametrize(("windows", "found"), [((), (32, True)), ((32,), (None, False))])
def test_a_prefill_is_followed_where_all_of_its_groups_can_be(
    monkeypatch: pytest.MonkeyPatch, windows: tuple[int, ...], found: tuple[int | None, bool]
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here = side()
    here.ready(ready(*windows))
    follows = request("r", follow="name")
    told: list[bool] = []
    fleet: Any = SimpleNamespace(group=0, arrived=lambda *about: told.append(about[-1]))
    here.fleet = fleet
    here.arrived(follows)
    assert here.matched(follows, 0) == found, "what is not followed is looked up"
    assert told == [not windows], "and waits for this engine"


def test_what_waiting_for_a_prefill_took_is_no_price_of_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here = side()
    here.ready(ready())
    follows, loads = request("f", follow="name"), request("l")
    for one in (follows, loads):
        here.arrived(one)
    here.heard(Report(loaded={"f": Loaded(32, 32, 32, 30.0, follows=True)}), {"f"})
    assert here._prices.load is None
    here.heard(Report(loaded={"l": Loaded(32, 32, 32, 0.5)}), {"l"})
    assert here._prices.load is not None


def test_what_is_loaded_behind_a_prefill_was_neither_looked_for_nor_found_in_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever prefills it has looked, and has counted what came of it."""
    used: list[tuple[int, ...]] = []
    monkeypatch.setattr(Late, "used", lambda _, *tokens: used.append(tokens))
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, follows = side(), request("f", follow="name")
    here.ready(ready())
    follows.num_preemptions = 0
    here.arrived(follows)
    assert here.matched(follows, 0) == (32, True)
    here.allocated(follows, ([7, 8, 9],), 32)
    here.heard(Report(loaded={"f": Loaded(16, 16, 32, 0.5, follows=True)}), {"f"})
    counted = {"followed_tokens": 16, "failed_tokens": 16, "load_seconds": [0.5]}
    assert (here.taken().data, used) == (counted, [])


@pytest.mark.parametrize("random", [False, True])
def test_no_prefill_is_followed_once_any_kv_was_found_wrong(
    monkeypatch: pytest.MonkeyPatch, random: bool
) -> None:
    """A hit's origins are looked at. Of what is followed nobody knows them before it is there."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, follows = side(), request("f", follow="name")
    here.ready(ready())
    here.arrived(follows)
    assert here.matched(follows, 0) == (32, True)
    here._audits._trust.differed({7}, "layer 0", random=random)
    assert here.matched(follows, 0) == (0, False)


@pytest.mark.parametrize(
    ("computed", "found"), [(48, (48, True)), (64, (32, True)), (80, (0, False)), (96, (0, False))]
)
def test_a_prefill_is_not_followed_where_vllm_has_a_part_of_its_last_short_block(
    monkeypatch: pytest.MonkeyPatch, computed: int, found: tuple[int, bool]
) -> None:
    """Of a full block the rest is loaded. Of a short one it is not, and the load would fail."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    group = KVGroup(layers=(0,), kv_heads=1, head_dim=8, block_tokens=64)
    spec = KVSpec(model="m", revision="r", dtype="float32", groups=(group,)).canonical()
    here, follows = side(), request("f", follow="name")
    here.ready({rank: replace(one, spec=spec) for rank, one in ready().items()})
    follows.all_token_ids = list(range(100))
    follows.num_tokens = follows.num_prompt_tokens = 100
    here.arrived(follows)
    assert here._here.tracked["f"].loaded_chains()[0].tokens == (64, 32)
    assert here.matched(follows, computed) == found


def test_who_follows_a_prefill_stores_the_blocks_that_its_reply_fills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prefill's last block is short. Where the reply goes on in it is a full one, of another
    name, that nobody else has."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    group = KVGroup(layers=(0,), kv_heads=1, head_dim=8, block_tokens=32)
    spec = KVSpec(model="m", revision="r", dtype="float32", groups=(group,)).canonical()
    here, follows, pages = side(), request("f", follow="name"), ([3, 4, 5, 6],)
    here.ready({rank: replace(one, spec=spec) for rank, one in ready().items()})
    follows.all_token_ids = list(range(60))
    follows.num_tokens = follows.num_prompt_tokens = 60
    follows.num_preemptions = follows.num_output_tokens = follows.num_computed_tokens = 0
    here.arrived(follows)
    assert here.matched(follows, 0) == (48, True)
    here.allocated(follows, pages, 48)
    (load,) = step_of(here, pages).loads
    (part,) = load.parts
    assert (len(part.hashes), part.last_tokens) == (2, 16), "a full one, and one of a page"
    here.heard(Report(loaded={"f": Loaded(48, 48, 48, 0.5, follows=True)}), {"f"})

    stored = []
    follows.num_computed_tokens, scheduled = 48, 12
    for token in range(5):
        saves = step_of(here, pages, f=scheduled).saves
        stored.append([one.parts[0].hashes for one in saves])
        assert not any(one.hand_off for one in saves)
        follows.num_computed_tokens += scheduled
        follows.all_token_ids.append(100 + token)
        follows.num_tokens, follows.num_output_tokens = 61 + token, 1 + token
        scheduled = 1
    tracked = here._here.tracked["f"]
    prompt, full = part.hashes[0], tracked.chains()[0].hashes[1]
    assert stored == [[(prompt,)], [], [], [], [(full,)]]
    assert full != part.hashes[1]


def step_of(here: SchedulerSide, pages: Any, **scheduled: int) -> Any:
    """What a step that computes so many tokens of each tells the workers."""
    return here.step(
        SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled.values()),
            num_scheduled_tokens=scheduled,
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: pages),
        )
    )
