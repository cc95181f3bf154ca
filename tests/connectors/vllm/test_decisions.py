"""Pure decisions: whether a load pays, whom to trust, what loading saves, whom to leave out."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.client import Client, FixedAddress
from kvstore.engine.connectors.vllm import audits as module
from kvstore.engine.connectors.vllm.audits import Audits
from kvstore.engine.connectors.vllm.contents import Content, Contents, Nameless
from kvstore.engine.connectors.vllm.effect import Effect
from kvstore.engine.connectors.vllm.keys import left_out
from kvstore.engine.connectors.vllm.media import Media
from kvstore.engine.connectors.vllm.messages import Verdict
from kvstore.engine.connectors.vllm.metrics import MoonpoolStats
from kvstore.engine.connectors.vllm.price import (
    BUDGET_SECONDS_MIN,
    FORGET_SECONDS,
    TRY_SHARE,
    Prices,
)
from kvstore.engine.connectors.vllm.tracked import Tracked
from kvstore.engine.connectors.vllm.trust import Trust, Verb
from tests.nodes import SPEC

PLAIN: dict[str, Any] = {
    "lora_request": None,
    "mm_features": [],
    "prompt_embeds": None,
    "prompt_token_ids": [1],
    "resumable": False,
    "cache_salt": None,
}


def test_the_first_prompt_is_computed_and_then_a_load_without_a_price_is_tried() -> None:
    prices = Prices()
    assert not prices.pays(10_000, 0.0)
    prices.computed(1_000, 1.0)
    assert prices.pays(64, 0.0) and prices.budget_seconds(1_000) == pytest.approx(1.0)


def test_a_load_that_is_dearer_than_computing_does_not_pay_until_it_is_forgotten() -> None:
    prices = Prices()
    prices.computed(1_000, 1.0)
    prices.loaded(1_000, 1_000, 3.0, now=0.0)
    assert not prices.pays(10_000, 0.0)
    assert prices.pays(10_000, 2 * FORGET_SECONDS), "a quarter of three is less than one"


def test_a_try_after_forgetting_may_take_only_a_part_of_what_computing_takes() -> None:
    prices = Prices()
    prices.computed(1_000, 1.0)
    prices.loaded(1_000, 1_000, 3.0, now=0.0)
    assert prices.budget_seconds(1_000) == pytest.approx(TRY_SHARE)
    prices.loaded(250, 1_000, TRY_SHARE / 4, now=3 * FORGET_SECONDS)  # quick again
    assert prices.pays(1_000, 3 * FORGET_SECONDS)
    assert prices.budget_seconds(1_000) == pytest.approx(1.0)


def test_a_load_that_got_nothing_is_dear_by_the_time_it_took() -> None:
    prices = Prices()
    prices.computed(1_000, 1.0)
    prices.loaded(0, 1_000, 0.5, now=0.0)
    assert not prices.pays(1_000, 0.0), "half a second was spent on no tokens"


def test_a_load_that_was_cut_short_does_not_say_what_any_load_costs_at_least() -> None:
    """It took as long as computing: what is loaded quickly would not be tried any more."""
    prices = Prices()
    prices.computed(1_000, 0.1)
    prices.loaded(2_000, 4_096, 0.4, now=0.0)
    assert not prices.pays(4_096, now=1.0)
    assert prices.pays(4_096, now=1_000.0), "it is dear for a while"


def test_a_load_costs_at_least_what_the_quickest_took() -> None:
    prices = Prices()
    prices.computed(1_000, 1.0)
    prices.loaded(1_000, 1_000, 0.5, now=0.0)
    assert prices.pays(1_000, 0.0) and not prices.pays(400, 0.0)


def test_a_budget_is_what_computing_would_take_and_never_next_to_nothing() -> None:
    prices = Prices()
    prices.computed(1_000, 1.0)
    assert prices.budget_seconds(500) == pytest.approx(0.5)
    assert prices.budget_seconds(1) == BUDGET_SECONDS_MIN


def test_a_new_origin_is_tested_until_enough_hits_agree() -> None:
    trust = Trust(self_test=True, hits=2, rate=0.0, seed=0)
    assert trust.verb([1]) is Verb.TEST
    assert trust.agreed([1]) == [] and trust.verb([1]) is Verb.TEST
    assert trust.agreed([1]) == [1] and trust.verb([1]) is Verb.LOAD
    assert trust.verb([1, 2]) is Verb.TEST, "one of its origins is new"


def test_an_origin_that_differed_is_refused_and_others_are_not() -> None:
    trust = Trust(self_test=False, hits=2, rate=0.0, seed=0)
    trust.differed([1], "misread", random=False)
    assert (trust.verb([1]), trust.verb([1, 2]), trust.verb([2])) == (
        Verb.REFUSE,
        Verb.REFUSE,
        Verb.LOAD,
    )


def test_a_random_hit_that_differed_ends_it_for_all() -> None:
    trust = Trust(self_test=False, hits=2, rate=0.0, seed=0)
    trust.differed([1], "wrong", random=True)
    assert trust.verb([2]) is Verb.REFUSE


def test_hits_are_audited_at_the_rate_that_is_set() -> None:
    trust = Trust(self_test=False, hits=0, rate=0.1, seed=3)
    drawn = [trust.verb([1]) for _ in range(5_000)]
    assert 400 < drawn.count(Verb.AUDIT) < 600
    assert set(drawn) == {Verb.AUDIT, Verb.LOAD}


def test_the_estimate_of_what_loading_saves_is_without_bias() -> None:
    """Over many draws its mean is what the loaded hits would have cost less what they did."""
    rate, estimates = 0.1, []
    for seed in range(400):
        die, effect = random.Random(seed), Effect(rate)
        for _ in range(200):
            loaded = die.random() >= rate
            effect.add(0.2 if loaded else 1.0, loaded=loaded)
        assert effect.saved_seconds is not None
        estimates.append(effect.saved_seconds)
    mean = sum(estimates) / len(estimates)
    assert mean == pytest.approx(200 * (1 - rate) * 0.8, rel=0.05)


def test_nothing_is_said_before_both_arms_have_a_hit() -> None:
    effect = Effect(0.5)
    effect.add(1.0, loaded=True)
    assert effect.saved_seconds is None


def test_what_hits_take_is_their_wait_and_on_every_gpu_their_prefill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    settings: Any = SimpleNamespace(audit_rate=0.5, audit_seed=1, self_test=False, self_test_hits=1)
    found, stats = Audits(settings), MoonpoolStats()
    found.gpus = 4
    for verb, waits, takes in ((Verb.LOAD, 1.0, 0.25), (Verb.AUDIT, 2.0, 3.0)):
        request = SimpleNamespace(num_output_tokens=0, num_preemptions=0)
        tracked: Any = SimpleNamespace(
            arrived=now[0], began=0.0, timed=False, verb=verb, request=request
        )
        now[0] += waits
        found.scheduled(tracked, stats)
        now[0] += takes
        request.num_output_tokens = 1
        assert not stats.data
        found.scheduled(tracked, stats)
    assert stats.data == {"ttft_saved_seconds": 5.0 - 1.25, "gpu_saved_seconds": 4 * (3.0 - 0.25)}


def test_a_request_that_asks_again_loads_nothing_that_may_not_be_loaded_by_then() -> None:
    settings: Any = SimpleNamespace(audit_rate=0.5, audit_seed=1, self_test=True, self_test_hits=1)
    audits, stats = Audits(settings), MoonpoolStats()

    def asks(tracked: Any, origin: int) -> Verb | None:
        assert audits.loads(tracked, tracked.computed, 64, {origin}) is (tracked.verb is Verb.LOAD)
        return tracked.verb

    def arrives() -> Any:
        return SimpleNamespace(id="a", computed=0, compared=0, verb=None, audit=None, miss="")

    first = arrives()
    assert asks(first, 1) is Verb.TEST and audits.span(first, 64, 64) == (0, 1)
    audits.judge("a", Verdict(1, 1.0, 0.0, ""), stats)
    loaded, audited = arrives(), arrives()
    assert {asks(loaded, 1), asks(audited, 1)} == {Verb.LOAD, Verb.AUDIT}
    for one in (loaded, audited):
        drawn = one.verb
        assert all(asks(one, 1) is drawn for _ in range(9)), "drawn anew"
        assert asks(one, 2) is Verb.TEST, "another origin stored it meanwhile"
    again = arrives()
    while asks(again, 1) is not Verb.AUDIT:
        again = arrives()
    assert audits.span(again, 64, 64) == (0, 1)
    assert audits.judge("a", Verdict(1, 1.1, 0.1, "wrong"), stats) == "wrong"
    assert asks(again, 1) is Verb.REFUSE, "its namespace is quarantined"


def test_each_verdict_is_of_its_own_step_though_the_next_was_scheduled_before_it_came() -> None:
    settings: Any = SimpleNamespace(audit_rate=0.0, audit_seed=1, self_test=True, self_test_hits=1)
    audits, stats = Audits(settings), MoonpoolStats()
    tracked: Any = SimpleNamespace(id="a", computed=0, compared=0, verb=None, audit=None, miss="")
    assert not audits.loads(tracked, tracked.computed, 128, {7})
    spans = [audits.span(tracked, done, 64) for done in (64, 128)]  # vLLM's asynchronous scheduling
    assert spans == [(0, 1), (1, 2)]
    for opened in (0, 1):
        assert audits.judge("a", Verdict(1, 1.0, 0.0, ""), stats) == ""
        assert stats.data.get("self_tests", 0) == opened, "trusted once all of the hit agreed"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("prompt_embeds", object(), "prompt embeddings"),
        ("prompt_token_ids", None, "prompt embeddings"),
        ("resumable", True, "streaming input"),
    ],
)
def test_requests_whose_kv_has_no_name_are_left_out(field: str, value: object, why: str) -> None:
    assert left_out(SimpleNamespace(**PLAIN)) == ""
    odd = SimpleNamespace(**{**PLAIN, field: value})
    assert left_out(odd) == why
    with pytest.raises(Nameless, match=why):
        Contents(Media("")).of(odd, 16)


def tracked(request: Any) -> Tracked:
    return Tracked(request, (), 64, Content())


@pytest.mark.parametrize("said", ["a name", 7, ["follow"], True, None])
def test_a_sender_who_says_something_odd_has_a_plain_request(said: object) -> None:
    odd = SimpleNamespace(**PLAIN, request_id="a", kv_transfer_params={"moonpool": said})
    assert (tracked(odd).hand_off, tracked(odd).follow) == ("", "")
    unnamed = {"moonpool": {"hand_off": None, "follow": None}}
    plain = tracked(SimpleNamespace(**PLAIN, request_id="n", kv_transfer_params=unnamed))
    assert (plain.hand_off, plain.follow) == ("", ""), "nothing is nobody's name"
    named = {"moonpool": {"hand_off": "one", "follow": 7}}
    request = SimpleNamespace(**PLAIN, request_id="b", kv_transfer_params=named)
    plain, since = tracked(request), Tracked(request, (), 64, Content(apart=True))
    assert (plain.hand_off, plain.follow) == ("one", "7")
    assert since.follow == "", "its writer has other names for the blocks"


@pytest.mark.parametrize("name", ["x" * 1_025, "\u00e9" * 513, "a\0b", "\ud800"])
@pytest.mark.parametrize("key", ["hand_off", "follow", "follow_at"])
def test_a_name_that_no_node_takes_is_nobody_s(key: str, name: str) -> None:
    said = {"hand_off": "one", "follow": "two", "follow_at": "three"}

    def saying(**other: str) -> Tracked:
        params = {"moonpool": {**said, **other}}
        return tracked(SimpleNamespace(**PLAIN, request_id="a", kv_transfer_params=params))

    fine, odd = saying(**{key: "x" * 1_024}), saying(**{key: name})
    assert (fine.misnamed, odd.misnamed) == (False, True)
    assert "" not in (fine.hand_off, fine.follow, fine.follow_at)
    assert (odd.hand_off, odd.follow, odd.follow_at) == ("", "", "")


@pytest.mark.parametrize(("hand_off", "most"), [("", 144), ("one", 96)])
def test_of_a_prefill_that_is_handed_off_no_more_is_loaded_again_than_was_stored(
    hand_off: str, most: int
) -> None:
    """As after a preemption, when it has decoded on: its last block is as short as it was."""
    client: Any = Client(FixedAddress("nowhere:1"), SPEC)  # in blocks of 4
    request = SimpleNamespace(
        **PLAIN,
        request_id="a",
        kv_transfer_params={"moonpool": {"hand_off": hand_off}},
        all_token_ids=list(range(97)),
        num_tokens=97,
        num_prompt_tokens=97,
    )
    found = Tracked(request, (client,), 16, Content())
    assert found.loads_max == 96, "the prompt's last token is computed"
    request.all_token_ids, request.num_tokens = list(range(147)), 147
    assert found.loads_max == most


def test_a_salt_goes_into_the_first_block_alone() -> None:
    def extra(salt: str | None) -> dict[int, bytes]:
        plain = SimpleNamespace(**{**PLAIN, "cache_salt": salt})
        return Contents(Media("")).of(plain, 16).extra

    assert extra(None) == {}
    assert list(extra("one")) == [0] and len(extra("one")[0]) == 32
    assert extra("one") != extra("two")
