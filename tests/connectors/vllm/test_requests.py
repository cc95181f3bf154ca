"""Requests that come to have their part in the pool while they are here, or have none any more."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kvstore.engine.connectors.vllm import scheduler as module
from kvstore.engine.connectors.vllm.messages import Adapter, Loaded, Report
from tests.connectors.vllm.test_contents import PIXELS, asked, image
from tests.connectors.vllm.test_scheduler import Late, ready, request, side

ADAPTER = Adapter(ord("a"), "a", "/a", "00")
PAGES = ([7, 8, 9],)


def ran(**scheduled: int) -> Any:
    """A step that computes so many tokens of each."""
    held = SimpleNamespace(get_block_ids=lambda _: PAGES)
    tokens = {"total_num_scheduled_tokens": sum(scheduled.values())}
    return SimpleNamespace(**tokens, num_scheduled_tokens=scheduled, kv_connector_block_state=held)


def fresh(name: str, **about: Any) -> Any:
    one = request(name)
    one.num_preemptions = one.num_output_tokens = one.num_computed_tokens = 0
    vars(one).update(about)
    return one


def test_requests_that_are_here_before_the_workers_are_heard_go_on_with_the_pool_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, pages = side(), ([7, 8, 9],)
    runs, waits, over = (request(name) for name in "rwo")
    for one in (runs, waits, over):
        one.num_preemptions = one.num_output_tokens = one.num_computed_tokens = 0
        here.arrived(one)
        assert here.matched(one, 0) == (0, False)
    for one in (runs, over):
        here.allocated(one, pages, 0)
    step: Any = SimpleNamespace(
        total_num_scheduled_tokens=64,
        num_scheduled_tokens={"r": 32, "o": 32},
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: pages),
    )
    assert here.step(step).saves == []
    assert not here.finished(over, pages)
    here.heard(Report(ready=tuple(ready().values())), set())
    assert here.taken().data == {"miss.unheard": 2}
    assert here.matched(waits, 0) == (None, False), "it is looked up"
    runs.num_computed_tokens = 32
    step.num_scheduled_tokens = {"r": 8}
    [save] = here.step(step).saves
    assert save.request == "r" and len(save.parts[0].hashes) == 2, "from its first block on"


def test_requests_that_vllm_forgot_the_caches_of_do_without_the_pool_though_it_is_heard_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, before, after = side(), request("b"), request("a")
    for one in (before, after):
        one.num_preemptions = one.num_output_tokens = one.num_computed_tokens = 0
    here.arrived(before)
    here.reset(empty=True)
    here.arrived(after)
    here.heard(Report(ready=tuple(ready().values())), set())
    assert [*here._here.tracked] == ["a"] and [*here._here.others] == ["b"]


def test_a_hand_off_is_over_with_its_request_and_where_that_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here = side()
    early, odd, plain = (fresh(name) for name in "eop")
    early.kv_transfer_params = {"moonpool": {"hand_off": "before the workers are heard"}}
    odd.kv_transfer_params = {"moonpool": {"hand_off": "a\0b"}}
    here.arrived(early)
    here.ready(ready())
    runs, waits = (request(name, hand_off=f"of {name}") for name in "rw")
    for one in (runs, waits):
        vars(one).update(num_preemptions=0, num_output_tokens=0, num_computed_tokens=0)
    for one in (runs, waits, odd, plain):
        here.arrived(one)
    assert here.step(ran()).over == []
    for one in (early, odd, plain, waits):
        here.finished(one, PAGES)
    assert here.step(ran()).over == ["before the workers are heard", "of w"]
    here.reset(empty=False)
    assert here.step(ran()).over == ["of r"], "at once: what it stores has no name any more"
    here.finished(runs, PAGES)
    assert here.step(ran()).over == ["of r"], "said again, which changes nothing"


def test_who_cannot_be_followed_for_what_it_is_says_so_as_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its followers would wait until it is over for blocks that they know by other names."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, told = side(), {"moonpool": {"hand_off": "streamed"}}
    here.ready(ready())
    here.arrived(fresh("s", resumable=True, kv_transfer_params=told))
    here.arrived(fresh("u", lora_request=asked(), kv_transfer_params={**told}))
    assert here.step(ran()).over == ["streamed"], "an adapter may be known soon"
    here.keep_apart("weights may change in place")
    apart = fresh("a", kv_transfer_params={"moonpool": {"hand_off": "apart", "follow": "other"}})
    here.arrived(apart)
    here.allocated(apart, PAGES, 0)
    step = here.step(ran(a=40))
    assert step.over == ["apart"]
    assert [one.hand_off for one in step.saves] == [""], "stored for this engine alone"


def test_the_last_blocks_of_a_hand_off_are_reserved_before_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, one = side(), request("r", hand_off="name")
    vars(one).update(num_preemptions=0, num_output_tokens=0, num_computed_tokens=0)
    here.ready(ready())
    here.arrived(one)
    here.allocated(one, PAGES, 0)
    assert len(here.step(ran(r=40)).saves) == 1
    here.step(ran())
    here.heard(Report(late={"r": 1}), set())
    one.num_computed_tokens, one.num_tokens = 40, 41
    assert here.finished(one, PAGES), "its pages are kept until a block that was late is stored"
    step = here.step(ran())
    assert ([one.hand_off for one in step.saves], step.over) == (["name"], ["name"])


def test_ranks_that_keep_different_things_leave_a_running_engine_without_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, one = side(), request("a")
    first, other = ready()[0, 0], ready(64)[0, 0]
    here.heard(Report(ready=(first,)).aggregate(Report(ready=(other,))), set())
    here.arrived(one)
    assert here.matched(one, 0) == (0, False) and not here._here.tracked


def test_a_request_under_an_adapter_has_its_part_once_a_worker_has_loaded_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, runs, waits = side(), fresh("r", lora_request=asked()), fresh("w", lora_request=asked())
    here.ready(ready())
    told: list[Adapter] = []
    fleet: Any = Mock(loaded=told.extend, group=0)
    here.fleet = fleet
    for one in (runs, waits):
        here.arrived(one)
        assert here.matched(one, 0) == (0, False)
    here.allocated(runs, PAGES, 0)
    assert here.step(ran(r=16)).saves == []
    older = Adapter(9, "b", "/b", "99")
    here.heard(Report(adapters=(ADAPTER, older)), set())
    assert here.matched(waits, 0) == (None, False), "it is looked up"
    runs.num_computed_tokens = 16
    [save] = here.step(ran(r=24)).saves
    assert told == [older, ADAPTER], "workers say the last first, conductors believe the last"
    assert (save.adapter, len(save.parts[0].hashes)) == (ADAPTER, 2), "from its first block on"
    plain = fresh("p")
    here.arrived(plain)
    assert plain.all_token_ids == runs.all_token_ids
    hashes = [here._here.tracked[name].chains()[0].hashes for name in "rwp"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_requests_under_an_adapter_that_is_another_now_do_without_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, one, plain = side(), fresh("o", lora_request=asked()), fresh("p")
    here.ready(ready())
    here.heard(Report(adapters=(ADAPTER,)), set())
    for each in (one, plain):
        here.arrived(each)
        here.allocated(each, PAGES, 0)
    assert [*here._here.tracked] == ["o", "p"]
    here.heard(Report(adapters=(replace(ADAPTER, weights="01"),)), set())
    assert [*here._here.tracked] == ["p"]
    assert [save.request for save in here.step(ran(o=40, p=40)).saves] == ["p"]
    here.heard(Report(adapters=(ADAPTER,)), set())
    assert [*here._here.tracked] == ["p"], "some of its KV may be of either"


@pytest.mark.parametrize("empty", [False, True])
def test_an_adapter_whose_weights_changed_has_a_name_again_once_vllm_caches_nothing(
    empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that its caches are reset also where requests still hold what it had."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here = side()
    here.ready(ready())
    for weights in ("00", "01"):
        here.heard(Report(adapters=(replace(ADAPTER, weights=weights),)), set())
    here.arrived(fresh("b", lora_request=asked()))
    here.reset(empty)
    here.arrived(fresh("a", lora_request=asked()))
    assert [*here._here.tracked] == (["a"] if empty else [])


def test_requests_under_an_adapter_do_without_the_pool_once_another_comes_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what that one computes by their weights vLLM would give the other's."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, other = side(), replace(ADAPTER, number=2, name="b", path="/b", weights="02")
    here.ready(ready())
    here.heard(Report(adapters=(ADAPTER, other)), set())
    here.arrived(fresh("a", lora_request=asked()))
    here.arrived(fresh("b", lora_request=asked("b", "/b", number=2)))
    assert [*here._here.tracked] == ["a", "b"]
    here.arrived(fresh("s", lora_request=asked("b", "/b", number=ADAPTER.number), resumable=True))
    assert [*here._here.tracked] == ["a"]


def test_hits_of_an_adapter_whose_files_have_changed_are_not_tried_again_and_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, one = side(), fresh("o", lora_request=asked())
    here.ready(ready())
    here.heard(Report(adapters=(ADAPTER,)), set())
    here.arrived(one)
    good = Loaded(16, 16, 16, 0.5)
    stale = replace(good, good=0, tokens=0, stale=ADAPTER)
    assert good.and_of(stale) == stale and stale.and_of(replace(stale, stale=None)) == stale
    here.heard(Report(loaded={"o": stale}), {"o"})
    here.arrived(fresh("n", lora_request=asked()))
    here.arrived(fresh("p"))
    assert [*here._here.tracked] == ["p"] and here._prices.load is None
    assert here.taken().data["failed_tokens"] == 16


def test_conductors_hear_of_each_adapter_what_its_blocks_are_named_by_from_now_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, other, told = side(), replace(ADAPTER, number=2, name="b", path="/b", weights="02"), []
    here.ready(ready())
    fleet: Any = Mock(loaded=told.append, group=0)
    here.fleet = fleet

    def hear() -> dict[str, str] | None:
        told.clear()
        here.step(ran())
        [adapters] = told
        return {one.name: one.weights for one in adapters} or None

    assert hear() is None
    here.heard(Report(adapters=(other, ADAPTER)), set())
    assert hear() == {"a": "00", "b": "02"} and hear() is None
    here.arrived(fresh("o", lora_request=asked()))
    stale = Loaded(16, 0, 0, 0.5, stale=ADAPTER)
    here.heard(Report(loaded={"o": stale}), {"o"})
    assert hear() == {"a": "", "b": "02"}, "its files have changed"
    here.arrived(fresh("s", lora_request=asked("c", "/c", number=other.number)))
    assert hear() == {"a": "", "b": "02"}, "what comes under its number is computed by it"
    here.heard(Report(adapters=(replace(other, name="c", path="/c", weights="03"),)), set())
    assert hear() == {"a": "", "c": ""}
    here.reset(True)
    assert hear() == {"a": "00", "c": "03"}


def test_images_that_a_session_streams_are_seen_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, streamed = side(), fresh("s", resumable=True)
    here.ready(ready())
    here.arrived(streamed)
    here.arrived(fresh("c", mm_features=[image("cat")]))
    streamed.mm_features = [image("cat", PIXELS + 1)]
    here.allocated(streamed, PAGES, 0)
    assert not here._here.tracked


def test_a_request_whose_image_shares_its_name_with_another_does_without_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM may encode the other one first, and take that for it."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, other = side(), image("mine", PIXELS + 1)
    here.ready(ready())
    cat, dog, bird = (
        fresh(name, mm_features=[one])
        for name, one in (("c", image("mine")), ("d", image("dog")), ("b", image("bird")))
    )
    for one in (cat, dog, bird):
        here.arrived(one)
    assert [*here._here.tracked] == ["c", "d", "b"]
    here.arrived(fresh("o", mm_features=[other]))
    here.arrived(fresh("s", mm_features=[image("bird", PIXELS + 1)], resumable=True))
    assert [*here._here.tracked] == ["d"]
    assert sorted(here._here.others) == ["b", "c", "o", "s"]


def test_a_load_is_priced_by_what_came_also_where_vllm_throws_all_of_it_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here = side()
    here.ready(ready(32))
    here.arrived(fresh("o"))
    cut = Loaded(8_128, 8_128, 8_192, 0.5, came=8_128).all_or_nothing()
    here.heard(Report(loaded={"o": cut}), {"o"})
    assert here._prices.load == 0.5 / 8_128
    assert here.taken().data["failed_tokens"] == 8_192
