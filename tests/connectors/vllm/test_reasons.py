"""Why the connector loads no more of a prompt than it does: each reason that is its own, made to be
one by a real engine, and counted under its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.engine.connectors.vllm.scheduler import CHEAPER
from kvstore.engine.connectors.vllm.trust import Verb
from tests.connectors.vllm.engine import engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import NodeProcess

LENGTH = 3 * 64 + 10
# Settings under which the last of three hits is not loaded for that reason.
MADE: dict[str, dict[str, Any]] = {
    CHEAPER: {"reuse": "priced"},
    Verb.TEST.value: {"self_test": True, "self_test_hits": 3},
    Verb.AUDIT.value: {"audit_rate": 1.0},
    Verb.REFUSE.value: {"self_test": True, "self_test_hits": 1},
}


def test_each_reason_of_the_connectors_own_is_made() -> None:
    assert MADE.keys() == {CHEAPER, *(one.value for one in Verb if one is not Verb.LOAD)}


@pytest.mark.parametrize("reason", MADE)
def test_a_hit_that_is_not_loaded_is_counted_under_its_reason(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path, reason: str
) -> None:
    prompts = [prompt(700 + index, LENGTH) for index in range(3)]
    with engine(model("llama"), tmp_path / "first.log", node=node.address) as first:
        first.run(*prompts, tokens=1)
    if reason == Verb.REFUSE.value:
        spoil(Pool(node), prompts)
    extra = MADE[reason]
    with engine(model("llama"), tmp_path / "second.log", node=node.address, extra=extra) as second:
        cached = [second.run(tokens, tokens=1).cached[0] for tokens in prompts]
        figures = second.figures()
    assert 0 in cached and figures[f"miss.{reason}"] >= 1
    assert figures.get("miss.absent", 0) == 0, "it was there"


def spoil(pool: Pool, prompts: list[list[int]]) -> None:
    """As a writer would that takes heads and tokens for each other."""
    for tokens in prompts:
        for index, data in enumerate(pool.get(tokens)):
            values = np.frombuffer(data, dtype=np.float32).reshape(4, 4, 64, -1)
            pool.replace(tokens, 0, index, values.transpose(0, 2, 1, 3).tobytes())
