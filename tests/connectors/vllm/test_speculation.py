"""With speculation on, prefixes are reused and the tokens are those of speculation alone."""

from __future__ import annotations

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
