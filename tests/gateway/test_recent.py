"""What people are told of the last requests."""

from __future__ import annotations

import pytest

from kvstore.gateway.recent import Recent
from kvstore.gateway.request import Outcome, Request

PROMPT = tuple(range(300))


def found(tokens: int, block_tokens: int = 64, miss: str = "") -> Outcome:
    return Outcome(pool_tokens=tokens, block_tokens=block_tokens, miss=miss)


@pytest.mark.parametrize(
    ("end", "all_was"),
    [
        (found(300), True),
        (found(256), True),  # by an engine that keeps whole blocks only
        (found(256, miss="absent"), False),
        (found(192), False),
        (found(0), False),
        (found(299, block_tokens=0), True),  # where nobody says what blocks are
        (found(256, block_tokens=0), False),
    ],
)
def test_all_was_found_where_the_blocks_are_and_nothing_was_wanting(
    end: Outcome, all_was: bool
) -> None:
    recent = Recent()
    recent.add(Request("r", PROMPT, 4), "whole", end)
    [one] = recent.newest()
    assert one["all_found"] is all_was


@pytest.mark.parametrize(("tokens", "all_was"), [(192, True), (128, False)])
def test_the_last_token_of_a_prompt_is_never_wanting(tokens: int, all_was: bool) -> None:
    """Engines compute it for what comes behind it, and some all of its block."""
    recent = Recent()
    recent.add(Request("r", PROMPT[:256], 4), "whole", found(tokens))
    assert recent.newest()[0]["all_found"] is all_was


def test_of_a_prompt_shorter_than_a_block_nothing_was_found() -> None:
    recent = Recent()
    recent.add(Request("r", PROMPT[:9], 4), "whole", found(0))
    assert recent.newest()[0]["all_found"] is False
