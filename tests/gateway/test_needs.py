"""What a request needs beside the model, and which engines have it."""

from __future__ import annotations

import pytest

from kvstore.errors import Unavailable
from kvstore.gateway.needs import Needs, Unable
from kvstore.gateway.request import Request
from kvstore.gateway.sampling import Sampling
from kvstore.gateway.spaces import Space

PLAIN = Request("r", (1,), 1)
DRAWN = Request("r", (1,), 1, sampling=Sampling(0.7))
UNDER = Request("r", (1,), 1, adapter="french")
OURS, VLLM, SGLANG = "127.0.0.1:1", "http://127.0.0.1:1", "sglang://127.0.0.1:1"
SPACES = {
    OURS: Space(b"n" * 32, 0, 4),
    VLLM: Space(b"n" * 32, 0, 4, samples=True),
    SGLANG: Space(b"n" * 32, 0, 4, samples=True, naming="sglang mla"),
}


@pytest.mark.parametrize(
    ("request_", "met"),
    [(PLAIN, {OURS, VLLM, SGLANG}), (DRAWN, {VLLM, SGLANG}), (UNDER, {VLLM})],
    ids=["plain", "drawn", "under an adapter"],
)
def test_it_is_met_by_those_that_can(request_: Request, met: set[str]) -> None:
    needs = Needs.of(request_)
    assert {one for one in SPACES if needs.met_at(one)} == met
    assert {one for one, space in SPACES.items() if needs.met_in(space)} == met


def test_where_none_can_the_field_is_named_and_where_none_is_there_now_it_is_better_later() -> None:
    drawn, under = Needs.of(DRAWN).unmet, Needs.of(UNDER).unmet
    assert isinstance(drawn, Unable) and drawn.field == "temperature"
    assert isinstance(under, Unavailable) and "'french'" in str(under)
