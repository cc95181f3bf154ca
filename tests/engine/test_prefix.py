"""A prefix whose KV was copied into the pages is used as if it had been computed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.hooks import NoHooks
from kvstore.engine.model import Model
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Chunk
from kvstore.engine.sequence import Sequence as Running
from tests.engine.runs import CopyingPool, finish, prompt, request, run


@pytest.mark.parametrize("cached", [1, 63, 64, 65, 128, 145, 192, 198])
def test_a_copied_prefix_of_any_length_gives_the_reference_tokens(
    pooled: EngineCore, pool: CopyingPool, reference: Reference, cached: int
) -> None:
    tokens = prompt(199)
    expected = reference.tokens(tokens, 12)
    assert run(pooled, tokens) == expected
    pool.offer = cached
    assert run(pooled, tokens) == expected
    assert pool.computed[0] == (cached, 199)


def test_a_prefix_serves_another_prompt_that_begins_alike(
    pooled: EngineCore, pool: CopyingPool, reference: Reference
) -> None:
    shared = prompt(128)
    run(pooled, shared + prompt(40, seed=1))
    pool.offer = 128
    other = shared + prompt(90, seed=2)
    assert run(pooled, other) == reference.tokens(other, 12)


def test_the_last_prompt_token_is_computed_even_where_all_were_cached(
    pooled: EngineCore, pool: CopyingPool, reference: Reference
) -> None:
    tokens = prompt(128)
    run(pooled, tokens)
    pool.offer = 128
    sequence = pooled.add(request(tokens))
    assert finish(pooled)["r"] == reference.tokens(tokens, 12)
    assert sequence.cached_tokens == 127
    assert pool.computed[0] == (127, 128)


def test_cached_and_uncached_requests_share_a_batch(
    pooled: EngineCore, pool: CopyingPool, reference: Reference
) -> None:
    tokens, fresh = prompt(200), prompt(90, seed=5)
    run(pooled, tokens)
    pool.offer = 128
    pooled.add(request(tokens, name="cached"))
    events = pooled.step()
    pool.offer = 0
    pooled.add(request(fresh, name="fresh"))
    expected = {"cached": reference.tokens(tokens, 12), "fresh": reference.tokens(fresh, 12)}
    assert finish(pooled, events) == expected


def test_layers_may_be_loaded_one_at_a_time_just_before_each_is_read(
    model: Model, reference: Reference
) -> None:
    class LayerwisePool(CopyingPool):
        waiting: Running | None = None

        def admitted(self, sequence: Running) -> int | None:
            self.waiting = sequence
            return self.offer

        def layer_starting(self, layer: int, chunks: Sequence[Chunk]) -> None:
            for chunk in chunks:
                if self.offer and chunk.sequence is self.waiting and chunk.start == self.offer:
                    self.fill(layer, chunk.sequence)

    pool = LayerwisePool()
    pool.core = EngineCore(model, EngineSettings(pages=48), pool)
    tokens = prompt(199)
    expected = run(pool.core, tokens)
    assert expected == reference.tokens(tokens, 12)
    pool.offer = 150
    assert run(pool.core, tokens) == expected


def test_a_prefix_may_land_over_several_steps_while_others_run(
    model: Model, reference: Reference
) -> None:
    class SlowPool(CopyingPool):
        asked = 0

        def admitted(self, sequence: Running) -> int | None:
            if not self.offer or sequence.id == "other":
                return 0
            self.asked += 1
            return super().admitted(sequence) if self.asked == 4 else None

    pool = SlowPool()
    pool.core = core = EngineCore(model, EngineSettings(pages=48), pool)
    tokens, other = prompt(199), prompt(30, seed=1)
    run(core, tokens)
    pool.offer = 128
    landing = core.add(request(tokens, name="landing"))
    core.add(request(other, name="other"))
    events = core.step()
    assert landing.loading and landing.computed_tokens == 0
    assert [event.request_id for event in events] == ["other"]
    outputs = finish(core, events)
    assert outputs["landing"] == reference.tokens(tokens, 12)
    assert outputs["other"] == reference.tokens(other, 12)
    assert (pool.asked, landing.cached_tokens) == (4, 128)


def test_a_request_may_be_aborted_while_its_prefix_lands(model: Model) -> None:
    class NeverPool(NoHooks):
        def admitted(self, sequence: Running) -> int | None:
            return None

    core = EngineCore(model, EngineSettings(pages=4), NeverPool())
    core.add(request(prompt(70)))
    assert core.step() == []
    assert core.abort("r") and core.idle
    assert core.cache.allocator.free == 4


def test_one_wrong_block_in_the_prefix_changes_the_tokens(
    pooled: EngineCore, pool: CopyingPool
) -> None:
    changed = 0
    for seed in range(5):
        tokens = prompt(512, seed)
        pool.offer = 0
        run(pooled, prompt(512, seed + 100), 1)
        other = pool.kept
        expected = run(pooled, tokens, 16)
        for layer, foreign in zip(pool.kept, other, strict=True):
            layer[3] = foreign[3]
        pool.offer = 511
        changed += run(pooled, tokens, 16) != expected
    assert changed >= 4
