"""The engine gives the tokens transformers gives, however the work is cut into steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from kvstore.engine.batch import Batch, Span
from kvstore.engine.cache import PagedKV
from kvstore.engine.core import EngineCore, EngineSettings, Event
from kvstore.engine.model import Model
from kvstore.engine.reference import Reference, reference_tokens
from kvstore.engine.sequence import Finish, Request
from tests.engine.runs import finish, prompt, request, run


def test_a_short_prompt_continues_as_transformers_continues_it(
    core: EngineCore, model_dir: Path
) -> None:
    tokens = prompt(9)
    assert run(core, tokens, 24) == reference_tokens(model_dir, tokens, 24)


@pytest.mark.parametrize("length", [1, 2, 62, 63, 64, 65, 127, 128, 129, 191, 192, 193, 320])
def test_prompts_around_page_boundaries_give_the_reference_tokens(
    core: EngineCore, reference: Reference, length: int
) -> None:
    tokens = prompt(length)
    assert run(core, tokens) == reference.tokens(tokens, 12)


@pytest.mark.parametrize("budget", [1, 7, 64, 100])
def test_a_prompt_prefilled_in_small_chunks_gives_the_reference_tokens(
    model: Model, reference: Reference, budget: int
) -> None:
    core = EngineCore(model, EngineSettings(pages=8, max_batch_tokens=budget, max_running=1))
    tokens = prompt(211)
    assert run(core, tokens) == reference.tokens(tokens, 12)


@pytest.mark.parametrize("page_tokens", [1, 16, 50])
def test_the_page_size_does_not_change_the_tokens(
    model: Model, reference: Reference, page_tokens: int
) -> None:
    core = EngineCore(model, EngineSettings(pages=200, page_tokens=page_tokens))
    tokens = prompt(113)
    assert run(core, tokens) == reference.tokens(tokens, 12)


@pytest.mark.parametrize("budget", [24, 512])
def test_requests_that_arrive_at_different_steps_each_give_their_reference_tokens(
    model: Model, reference: Reference, budget: int
) -> None:
    core = EngineCore(model, EngineSettings(pages=14, max_batch_tokens=budget, max_running=8))
    arrivals = {0: (3, 150), 1: (64,), 4: (65, 1, 200), 9: (130,), 10: (8, 8)}
    wanted: dict[str, list[int]] = {}
    events, step = list[Event](), 0
    for at, lengths in arrivals.items():
        while step < at:
            events += core.step()
            step += 1
        for length in lengths:
            name, tokens = f"{at}/{len(wanted)}", prompt(length, seed=len(wanted))
            core.add(request(tokens, new=30, name=name))
            wanted[name] = reference.tokens(tokens, 30)
    assert finish(core, events) == wanted


def test_an_end_token_stops_a_request_that_minds_it(core: EngineCore, reference: Reference) -> None:
    tokens = prompt(20)
    full = reference.tokens(tokens, 10)
    end = full[4]
    sequence = core.add(Request("minds", tuple(tokens), 10, frozenset({end})))
    assert finish(core)["minds"] == full[: full.index(end) + 1]
    assert sequence.finish is Finish.STOP
    sequence = core.add(Request("ignores", tuple(tokens), 10, frozenset({end}), ignore_eos=True))
    assert finish(core)["ignores"] == full
    assert sequence.finish is Finish.LENGTH


def test_bfloat16_logits_are_as_near_float32_as_those_of_transformers(
    model_dir: Path, reference: Reference, tmp_path: Path
) -> None:
    folder = tmp_path / "bf16"
    shutil.copytree(model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    tokens = prompt(150)
    exact = reference.logits(tokens)[-1]
    theirs = Reference(folder).logits(tokens)[-1].float()
    model = Model.load(folder)
    assert model.dtype is torch.bfloat16
    ours = _last_logits(model, tokens, cut=70).float()
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()
    assert torch.equal(ours, _last_logits(model, tokens, cut=70).float())


def test_chunked_prefill_leaves_logits_within_rounding_of_whole_prefill(
    model: Model, reference: Reference
) -> None:
    tokens = prompt(300)
    expected = reference.logits(tokens)[-1]
    for cut in (1, 64, 171, 299):
        torch.testing.assert_close(_last_logits(model, tokens, cut), expected, atol=1e-3, rtol=0)


def test_a_chunk_that_wants_no_logits_gets_none(model: Model) -> None:
    cache = PagedKV(model.config, pages=2)
    table = cache.allocate("a", 100)
    assert table is not None
    logits = model.forward(Batch([Span(prompt(30), 0, table, False)], 64), cache)
    assert logits.shape == (0, model.config.vocab_size)


def _last_logits(model: Model, tokens: list[int], cut: int) -> torch.Tensor:
    """Logits after `tokens`, prefilled as [0, cut) and [cut, end)."""
    cache = PagedKV(model.config, pages=8)
    table = cache.allocate("a", len(tokens))
    assert table is not None
    model.forward(Batch([Span(tokens[:cut], 0, table, False)], 64), cache)
    return model.forward(Batch([Span(tokens[cut:], cut, table, True)], 64), cache)[0]
