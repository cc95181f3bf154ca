"""What a step completes is stored, or a miss later; vLLM's worker goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.client import Unavailable
from kvstore.engine.connectors.vllm.health import health_of
from kvstore.engine.connectors.vllm.messages import Part, Save, Step
from kvstore.engine.connectors.vllm.saves import Saves
from kvstore.engine.connectors.vllm.trace import Trace

SOON = 30.0


@pytest.mark.parametrize("raised", [Unavailable("the node is gone"), KeyError(99)])
@pytest.mark.parametrize("hand_off", ["", "a name"])
def test_a_step_whose_blocks_cannot_be_reserved_goes_on(raised: Exception, hand_off: str) -> None:
    def writer(*_: object, **named: object) -> None:
        raise raised

    space = SimpleNamespace(layout=SimpleNamespace(block_tokens=64, whole="all"))
    facts = SimpleNamespace(layer_names=("0",), writes=True, page_tokens=32, window_tokens=0)
    client = SimpleNamespace(space=space, writer=writer)
    cache: Any = SimpleNamespace(facts=facts, client=client, fragment="all")
    saves = Saves((cache,), "engine", 1, SOON, health_of("odd"), Trace(""))
    part = Part(group=0, first=0, hashes=(b"h" * 32,), parent=b"", pages=(7, 8), last_tokens=64)
    saves.begin(Step(1, saves=[Save("a", (part,), hand_off)]))
    saves.layer("0")
    assert saves.end() == (0, {})
    saves.close()
