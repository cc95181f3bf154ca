"""The scheduler's half by itself: what it makes of what workers and lookups say."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig, WeightTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

from kvstore.client import KVGroup, KVSpec
from kvstore.engine.connectors.vllm import MoonpoolConnector
from kvstore.engine.connectors.vllm import scheduler as module
from kvstore.engine.connectors.vllm.contents import Contents
from kvstore.engine.connectors.vllm.media import Media
from kvstore.engine.connectors.vllm.messages import Loaded, Ready, Report, Save
from kvstore.engine.connectors.vllm.saves import gathered
from kvstore.engine.connectors.vllm.scheduler import SchedulerSide
from kvstore.engine.connectors.vllm.settings import Settings


def side(**settings: object) -> SchedulerSide:
    said = Settings.of(settings)
    here: Any = {
        "reads": True,
        "writes": True,
        "goes_on": True,
        "place": None,
        "contents": Contents(Media("")),
    }
    return SchedulerSide(said, 16, **here)


def test_a_load_counts_once_when_all_ranks_have_ended_it_and_as_the_worst_of_them_did() -> None:
    here = side()
    here.heard(Report(loaded={"a": Loaded(64, 64, 128, 0.25)}), set())
    assert here.stats.is_empty(), "another rank is still loading"
    here.heard(Report(loaded={"a": Loaded(128, 128, 128, 0.5)}), {"a"})
    one = {"loaded_tokens": 64, "failed_tokens": 64, "load_seconds": [0.25]}
    assert here.taken().data == one, "though vLLM has ended the request by then"
    here.heard(Report(loaded={"a": Loaded(128, 128, 128, 0.5)}), {"a"})
    assert here.taken().data == {"loaded_tokens": 128, "load_seconds": [0.5]}, "of another time"


def ready(*windows: int) -> dict[tuple[int, int], Ready]:
    """What one rank says of a group that needs all earlier tokens, and of one for each window."""
    facts: dict[str, Any] = {"kv_heads": 1, "head_dim": 8, "block_tokens": 16}
    groups = [KVGroup(layers=(0,), **facts)]
    for layer, tokens in enumerate(windows, 1):
        groups.append(KVGroup(layers=(layer,), reuse="window", window_tokens=tokens, **facts))
    spec = KVSpec(model="m", revision="r", dtype="float32", groups=tuple(groups))
    count = len(groups)
    one = Ready(spec.canonical(), 1, count * (16,), tuple(range(count)), (0, *windows), "recompute")
    return {(0, 0): one}


def request(name: str, **said: str) -> Any:
    return SimpleNamespace(
        request_id=name,
        all_token_ids=list(range(40)),
        num_tokens=40,
        num_prompt_tokens=40,
        kv_transfer_params={"moonpool": said},
        lora_request=None,
        mm_features=[],
        prompt_embeds=None,
        prompt_token_ids=[1],
        resumable=False,
        skip_reading_prefix_cache=False,
        cache_salt=None,
    )


class Late:
    """A lookup that is never answered, whoever asks for it, and the clock of both."""

    fresh = True

    def __init__(self, *_: object) -> None:
        self.now, self.waited = 0.0, []  # seconds, each time

    def monotonic(self) -> float:
        return self.now

    def ask(self, chains: object, most: int) -> Late:
        return self

    def later(self, call: object) -> None:
        pass

    def used(self, *tokens: int) -> None:
        pass

    def drop(self, lookups: object) -> None:
        pass

    def result(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def configured(weights: WeightTransferConfig | None) -> Any:
    """As far as a vLLM's configuration is looked at here."""
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(kv_connector="ours", kv_role="kv_both"),
        cache_config=SimpleNamespace(block_size=16),
        model_config=SimpleNamespace(multimodal_config=None),
        lora_config=None,
        weight_transfer_config=weights,
    )


def test_a_step_waits_for_all_its_late_answers_as_long_as_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Late()
    monkeypatch.setattr(module, "Lookups", lambda *_: late)
    monkeypatch.setattr(module, "time", late)
    here = side(lookup_ms=20)
    here.ready(ready())
    requests = [request(name) for name in "abc"]
    for one in requests:
        here.arrived(one)
    nothing: Any = SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={})
    for _ in range(2):
        assert [here.matched(one, 0) for one in requests] == 3 * [(None, False)]
        here.step(nothing)
    assert late.waited == pytest.approx(2 * [0.02, 0.0, 0.0])


@pytest.mark.parametrize(("told", "shared"), [(None, True), (WeightTransferConfig(), False)])
def test_where_weights_may_come_in_place_an_engine_shares_with_nobody_from_its_start(
    monkeypatch: pytest.MonkeyPatch, told: WeightTransferConfig | None, shared: bool
) -> None:
    """They may with no reset of what is cached, as in a pause that is told to keep it."""
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    found = []
    for _ in range(2):
        engine = MoonpoolConnector(configured(told), KVConnectorRole.SCHEDULER, None)
        engine.set_xfer_handshake_metadata_pp_aware(ready())
        engine.on_new_request(request("a"))
        found.append(engine._scheduler._here.tracked["a"].chains()[0].hashes)  # type: ignore[union-attr]
    assert (found[0] == found[1]) is shared


def test_pages_that_another_connector_may_still_be_filling_are_not_stored_at_a_requests_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    here, pages = side(), ([7, 8, 9],)
    here.ready(ready())
    given_up, served = request("g"), request("s")
    for one in (given_up, served):
        one.num_preemptions = one.num_output_tokens = 0
        one.num_computed_tokens = 16
        here.arrived(one)
        here.allocated(one, pages, 0)
    ran: Any = SimpleNamespace(
        total_num_scheduled_tokens=8,
        num_scheduled_tokens={"s": 8},
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: pages),
    )
    here.step(ran)
    for one in (given_up, served):
        one.num_computed_tokens = 40
    served.num_output_tokens = 1
    assert not here.finished(given_up, pages), "what vLLM counts as computed may be under way"
    assert here.finished(served, pages), "a token has come of it, so it is there"


@pytest.mark.parametrize("apart", [True, False])
def test_pages_are_kept_for_a_last_block_where_a_step_comes_after_the_last_request(
    monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """In an engine that is no process of its own none does."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", str(int(apart)))
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    engine = MoonpoolConnector(configured(None), KVConnectorRole.SCHEDULER, None)
    engine.set_xfer_handshake_metadata_pp_aware(ready())
    one = request("a")
    one.num_preemptions = one.num_output_tokens = one.num_computed_tokens = 0
    engine.on_new_request(one)
    here = engine._scheduler
    assert here is not None
    here.allocated(one, ([7, 8, 9],), 0)
    here._here.tracked["a"].ran, one.num_computed_tokens = True, 32
    assert here.finished(one, ([7, 8, 9],)) is apart
    assert len(here._finishing) == apart


# Behind a text, of an engine that keeps none.
IMAGE = SimpleNamespace(identifier="an image", mm_position=SimpleNamespace(offset=33, length=4))


class Beside:
    """A side that looks nothing up, beside another connector, and vLLM's requests there."""

    def __init__(self) -> None:
        said = Settings.of({"reuse": "always"})
        writes: Any = {"reads": False, "writes": True, "goes_on": True, "place": None}
        self.here = SchedulerSide(said, 16, **writes, contents=Contents(Media("", "images")))
        self.here.ready(ready())
        self.pages: dict[str, tuple[list[int]]] = {}

    def given(
        self, name: str, pages: list[int], *, cached: int, loaded: int = 0, images: Any = ()
    ) -> Any:
        """A request whose first tokens vLLM has, and the next from the other connector."""
        one = request(name)
        one.mm_features = list(images)
        one.num_preemptions = one.num_output_tokens = 0
        self.pages[name] = (pages,)
        self.here.arrived(one)
        assert self.here.matched(one, cached) == (0, False)
        self.here.allocated(one, self.pages[name], 0)
        one.num_computed_tokens = cached + loaded
        return one

    def saves(self, **scheduled: int) -> list[Save]:
        """What a step that computes so many tokens of each stores."""
        held = SimpleNamespace(get_block_ids=lambda name: self.pages[name])
        step: Any = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled.values()),
            num_scheduled_tokens=scheduled,
            kv_connector_block_state=held,
        )
        return self.here.step(step).saves

    def stored(self, **scheduled: int) -> dict[str, int]:
        """Of whom so many blocks are."""
        return {one.request: len(one.parts[0].hashes) for one in self.saves(**scheduled)}

    def close(self) -> None:
        self.here.close()


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    yield made
    made.close()


def test_what_another_connector_loaded_is_stored_once_a_token_has_come_of_it(
    beside: Beside,
) -> None:
    one = beside.given("a", [7, 8, 9], cached=0, loaded=32)
    assert beside.stored(a=8) == {}, "its load may be failing in this very step"
    one.num_computed_tokens = 0  # it did: vLLM computes all of it, of which no token came
    assert beside.stored(a=40) == {}
    one.num_computed_tokens, one.num_tokens, one.num_output_tokens = 40, 41, 1
    one.all_token_ids.append(1)
    assert beside.stored(a=1) == {"a": 2}


def test_who_shares_pages_that_another_connector_loaded_waits_for_a_token_of_its_own(
    beside: Beside,
) -> None:
    beside.given("a", [7, 8, 9], cached=0, loaded=32)
    sharing = beside.given("b", [7, 8, 10], cached=32)
    apart = beside.given("c", [1, 2, 3], cached=32)
    assert sharing.num_computed_tokens == apart.num_computed_tokens
    apart.all_token_ids = [9] * 40  # of another prefix, so nobody else stores the same
    assert beside.stored(a=8, b=8, c=8) == {"c": 2}
    sharing.num_computed_tokens, sharing.num_tokens, sharing.num_output_tokens = 40, 41, 1
    sharing.all_token_ids.append(1)
    assert beside.stored(b=1) == {"b": 2}


def test_pages_that_another_connector_loaded_for_who_is_left_out_prove_nothing_either(
    beside: Beside,
) -> None:
    """Of a prompt whose text comes before an image: vLLM lets another of that text have its pages,
    before it knows that what was to be loaded into them was not."""
    left_out = beside.given("a", [7, 8, 9], cached=0, loaded=32, images=[IMAGE])
    sharing = beside.given("b", [7, 8, 10], cached=32)
    assert beside.stored(a=8, b=8) == {}
    left_out.num_output_tokens = sharing.num_output_tokens = 1
    assert beside.stored(a=1, b=1) == {"b": 2}, "what was loaded was good"
    beside.given("c", [7, 8, 11], cached=32)
    assert beside.stored(c=8) == {"c": 2}


def test_pages_that_another_connector_is_loading_are_unproven_after_a_reset_as_well(
    beside: Beside,
) -> None:
    beside.given("a", [7, 8, 9], cached=0, loaded=32)
    assert beside.stored(a=8) == {}
    beside.here.reset(empty=True)
    beside.given("b", [7, 8, 10], cached=32)
    assert beside.stored(b=8) == {}


def test_nothing_is_kept_of_a_request_that_is_over(beside: Beside) -> None:
    here = beside.here
    for name, images in (("a", ()), ("b", [IMAGE])):
        over = beside.given(name, [7, 8, 9], cached=0, loaded=32, images=images)
        beside.stored(**{name: 8})
        here.finished(over, beside.pages[name])
    assert not here._here.tracked and not here._here.others
    assert not here._unproven._tokens and not here._unproven._pages


@pytest.mark.parametrize(("tokens", "stored"), [(0, False), (1, True)])
def test_a_request_that_ends_without_a_token_of_what_another_loaded_leaves_nothing(
    beside: Beside, tokens: int, stored: bool
) -> None:
    one = beside.given("a", [7, 8, 9], cached=0, loaded=32)
    assert beside.stored(a=8) == {}
    one.num_computed_tokens, one.num_output_tokens = 40, tokens
    assert beside.here.finished(one, beside.pages["a"]) is stored


def test_what_vllm_has_itself_or_was_loaded_by_us_is_stored_as_it_is_completed(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = beside.given("a", [7, 8, 9], cached=16)
    assert beside.stored(a=24) == {"a": 2}
    tracked = beside.here._here.tracked["a"]
    tracked.published, tracked.end = 1, 32  # as after a hit
    beside.here.allocated(ours, beside.pages["a"], 16)
    ours.num_computed_tokens = 32
    assert beside.stored(a=8) == {"a": 1}


def test_a_block_that_two_requests_of_a_step_complete_is_stored_by_one_of_them(
    beside: Beside,
) -> None:
    """The later one shares what vLLM has, of which nobody knows yet that the pool has it too. A
    block that stands twice in one call has the node refuse all of them."""
    first = beside.given("a", [7, 8, 9], cached=0)
    assert beside.stored(a=16) == {"a": 1}
    first.num_computed_tokens = 16
    beside.given("b", [7, 8, 10], cached=16)
    parts = [save.parts[0] for save in beside.saves(a=24, b=24)]
    blocks, pages = gathered(parts, 16, 16, window=False)
    assert sorted(blocks.hashes) == sorted(beside.here._here.tracked["a"].chains()[0].hashes)
    assert sorted(pages) == [7, 8]


def test_a_request_for_which_vllm_reads_no_cache_is_neither_looked_up_nor_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that wants its prompt's logprobs: it has to compute them all."""
    asked: list[object] = []
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    monkeypatch.setattr(Late, "ask", lambda late, *about: asked.append(about) or late)
    here = side()
    here.ready(ready())
    reads_none = request("a")
    reads_none.skip_reading_prefix_cache = True
    here.arrived(reads_none)
    assert here.matched(reads_none, 0) == (0, False) and not asked
