"""With speculation on, prefixes are reused and the tokens are those of speculation alone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.vllm.engine import engine
from tests.connectors.vllm.models import prompt
from tests.nodes import NodeProcess

BLOCK = 64
# Text that repeats itself, so that an n-gram of it has been seen.
REPEATED = prompt(120, 24)
PROMPTS = [[*REPEATED * 9, *prompt(121, 5)], prompt(122, 4 * BLOCK + 20)]
WHOLE = [(len(one) - 1) // BLOCK * BLOCK for one in PROMPTS]


SELF_TEST = {"self_test": True}  # that takes two hits
LATE = {"deadline_ms": 2_000}


def ngram(model: Callable[[str], Path]) -> dict[str, Any]:
    return {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def draft_model(model: Callable[[str], Path]) -> dict[str, Any]:
    draft = str(model("small_llama"))
    return {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}


@pytest.mark.parametrize("method", [ngram, draft_model])
def test_speculation_with_reused_prefixes_gives_the_tokens_of_speculation_alone(
    method: Callable[..., dict[str, Any]],
    node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder, options = model("llama"), {"speculative_config": method(model)}
    with engine(folder, tmp_path / "alone.log", **options) as alone:
        wanted = alone.run(*PROMPTS, tokens=40)
    assert wanted.counted["spec_decode_num_draft_tokens"] > 0, "nothing was speculated"
    with engine(folder, tmp_path / "pool.log", node=node.address, **options) as served:
        for hits in ([0, 0], WHOLE):
            ran = served.run(*PROMPTS, tokens=40)
            assert ran.cached == hits
            assert ran.external[1] == sum(hits)
            assert ran.tokens == wanted.tokens
            assert ran.counted["spec_decode_num_draft_tokens"] > 0
            served.forget()


def test_an_engine_in_its_callers_process_keeps_no_page_of_a_request_that_is_over(
    node: NodeProcess, model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Tokens that were guessed right fill a block that no step has stored by then, and none comes
    after the last request: its pages would be in use for ever."""
    said = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 3}
    options = {"speculative_config": {**said, "prompt_lookup_min": 1}}
    with engine(model("llama"), tmp_path / "e.log", node=node.address, **options) as served:
        for seed, length in ((50, 100), (51, 101), (53, 103)):
            served.run((prompt(seed, 10) * 20)[:length], tokens=129 - length)
            served.forget()


def test_a_node_that_dies_costs_recompute_where_a_draft_has_a_group_of_its_own_too(
    node: NodeProcess, model: Callable[[str], Path], tmp_path: Path
) -> None:
    """vLLM is told by request then what failed to load: by page it cannot be."""
    draft = {"method": "draft_model", "model": str(model("windowed_llama"))}
    options = {"speculative_config": {**draft, "num_speculative_tokens": 3}}
    log = tmp_path / "pool.log"
    with engine(model("llama"), log, node=node.address, extra=LATE, **options) as served:
        first = served.run(*PROMPTS)
        served.forget()
        assert served.run(*PROMPTS).cached == WHOLE
        served.forget()
        served.signal_at_load(node.pid, signal.SIGKILL, opened=False)
        again = served.run(*PROMPTS)
    assert node.exited is not None, "no load was begun"
    assert again.tokens == first.tokens


def test_with_speculation_too_hits_are_compared_before_they_are_loaded(
    node: NodeProcess, model: Callable[[str], Path], tmp_path: Path
) -> None:
    prompts = [prompt(130 + index, BLOCK + 10) for index in range(4)]
    options = {"speculative_config": ngram(model), "extra": SELF_TEST}
    with engine(model("llama"), tmp_path / "pool.log", node=node.address, **options) as served:
        served.run(*prompts, tokens=1)
        served.forget()
        # Two are compared, and what came of the second is told a step later.
        assert served.run(*prompts, tokens=1).cached == [0, 0, 0, BLOCK]
        figures = served.figures()
    assert figures["self_tests"] >= 2 and figures["alarms"] == 0
    assert figures["saved_blocks"] == len(prompts)
