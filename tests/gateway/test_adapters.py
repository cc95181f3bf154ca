"""A dispatcher over servers that have LoRA adapters: which are asked, and for what."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.block import chain
from kvstore.content import adapted, salted, together
from kvstore.errors import Unavailable
from kvstore.gateway.needs import Unable
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import Space
from tests.gateway.engine_doubles import Nobody
from tests.gateway.openai_server import Double, serving
from tests.gateway.test_vllm import TOKENS, WHOLE, Names, run

WEIGHTS, PROMPT = b"w" * 32, tuple(range(10))


def test_a_server_is_asked_for_the_adapter_by_its_name_and_for_the_model_by_none() -> None:
    server = Double(WHOLE)
    with serving(server):
        for adapter in ("french", ""):
            tokens, _ = run(Nobody(), server.address, adapter=adapter)
            assert tokens == TOKENS
    assert [one.body.get("model") for one in server.asked] == ["french", None]


def test_engines_that_compute_under_no_adapter_are_not_asked_to() -> None:
    server = Double(WHOLE)
    others = ("127.0.0.1:9", "sglang://127.0.0.1:9")
    with serving(server):
        tokens, outcome = run(Nobody(), *others, server.address, adapter="french")
        assert tokens == TOKENS and outcome.engines == [server.address]
        with pytest.raises(Unable, match="'french'"):
            run(Nobody(), *others, adapter="french")
        with pytest.raises(Unable, match="'french'"):
            run(Names("127.0.0.1:9"), adapter="french")


def test_where_a_server_does_not_have_it_another_is_asked() -> None:
    lacks: Any = Double([{"error": {"message": "The model `french` does not exist."}}], status=404)
    has = Double(WHOLE)
    with serving(lacks, has):
        tokens, outcome = run(Nobody(), lacks.address, has.address, adapter="french")
        assert tokens == TOKENS and outcome.tries == 2
        with pytest.raises(Unavailable, match="does not exist"):
            run(Nobody(), lacks.address, adapter="french")


def test_blocks_under_an_adapter_are_named_by_its_weights() -> None:
    space = Space(b"n" * 32, 1, 4, adapters={"french": WEIGHTS, "mixed": b""})
    under = Request("r", PROMPT, 4, salt="s", adapter="french")
    extra = together(salted("s"), adapted(WEIGHTS))
    assert list(space.asked(under).hashes) == list(chain(b"n" * 32, 1, PROMPT, 4, extra).hashes)
    for adapter in ("mixed", "unheard of"):
        asked = space.asked(Request("r", PROMPT, 4, adapter=adapter))
        assert not asked.hashes and asked.tokens == len(PROMPT), "nobody knows what to look for"
