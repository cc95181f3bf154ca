"""What the engine says of a token is the log-softmax of the logits that transformers computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvstore.engine.core import EngineCore, EngineSettings, TokenEvent
from kvstore.engine.device import CPU
from kvstore.engine.errors import BadRequest
from kvstore.engine.logprobs import logprobs_of
from kvstore.engine.model import Model
from kvstore.engine.reference import Reference
from kvstore.limits import TOP_LOGPROBS_MAX
from kvstore.logprobs import Logprobs
from tests.engine.runs import prompt, request

NEW = 12


def said(core: EngineCore, *wanted: int | None) -> list[list[Logprobs | None]]:
    """Of each of some requests, one more token long each, that run together."""
    for number, top in enumerate(wanted):
        asked = request(prompt(70 + number), NEW, str(number))
        core.add(replace(asked, logprobs=top))
    found: list[list[Logprobs | None]] = [[] for _ in wanted]
    while not core.idle:
        for event in core.step():
            if isinstance(event, TokenEvent):
                assert event.index == len(found[int(event.request_id)])
                found[int(event.request_id)].append(event.logprobs)
    return found


def expected(reference: Reference, number: int) -> tuple[list[int], torch.Tensor]:
    """The answer's tokens, and of each of its places the logprobs of all (NEW, vocab)."""
    tokens = prompt(70 + number)
    answer = reference.tokens(tokens, NEW)
    logits = reference.logits([*tokens, *answer])[len(tokens) - 1 : -1]
    return answer, logits.log_softmax(-1, dtype=torch.float32)


def test_each_request_has_as_many_as_it_asks_for_and_they_are_the_reference_s(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, EngineSettings(pages=48, max_batch_tokens=100, max_running=4))
    for number, (top, found) in enumerate(
        zip((3, None, 0, 20), said(core, 3, None, 0, 20), strict=True)
    ):
        answer, every = expected(reference, number)
        if top is None:
            assert found == [None] * NEW
            continue
        for at, one in enumerate(found):
            assert one is not None and len(one.top) == top
            assert one.logprob == pytest.approx(float(every[at, answer[at]]), abs=1e-4)
            values = [value for _, value in one.top]
            assert values == pytest.approx(every[at].topk(top).values.tolist(), abs=1e-4)
            theirs = [float(every[at, token]) for token, _ in one.top]
            assert values == pytest.approx(theirs, abs=1e-4)
            assert not top or one.top[0] == (answer[at], one.logprob)


def test_where_nobody_asks_nothing_is_computed() -> None:
    class Untouched:
        def __getitem__(self, rows: object) -> torch.Tensor:
            raise AssertionError("somebody looked at logits")

    untouched: torch.Tensor = Untouched()  # type: ignore[assignment]
    assert logprobs_of(untouched, untouched, [None, None], CPU.fetch) == [None, None]


def test_a_vocabulary_has_no_more_of_them_than_tokens() -> None:
    (one,) = logprobs_of(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), [5], CPU.fetch)
    assert one is not None and one.logprob == pytest.approx(-0.693147, abs=1e-6)
    assert sorted(token for token, _ in one.top) == [0, 1]


def test_logits_of_half_precision_are_summed_in_single() -> None:
    logits = torch.linspace(-1, 1, 4_096).bfloat16().unsqueeze(0)
    (one,) = logprobs_of(logits, torch.tensor([7]), [0], CPU.fetch)
    assert one is not None
    assert one.logprob == pytest.approx(float(logits[0].double().log_softmax(-1)[7]), abs=1e-5)


@pytest.mark.parametrize("top", [-1, TOP_LOGPROBS_MAX + 1])
def test_more_than_the_engine_tells_of_is_refused(core: EngineCore, top: int) -> None:
    with pytest.raises(BadRequest, match=f"logprobs = {top}: ask for 0 to 20"):
        core.add(replace(request(prompt(9)), logprobs=top))
    assert core.idle
