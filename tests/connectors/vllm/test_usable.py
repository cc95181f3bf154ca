"""How long a prefix can be had, against trying every length."""

from __future__ import annotations

import random

import pytest

from kvstore.engine.connectors.vllm.usable import Window, usable_tokens, window_start


def tried(chain: int, windows: list[Window], size: int, align: int, most: int) -> int:
    """The longest length for which every token that the next one sees is there."""
    for end in range(min(chain * size, most), 0, -1):
        seen = [range(max(0, end - one.tokens + 1), end) for one in windows]
        whole = all(
            one.present[token // size]
            for one, tokens in zip(windows, seen, strict=True)
            for token in tokens
        )
        if end % size == 0 and end % align == 0 and whole:
            return end
    return 0


@pytest.mark.parametrize("seed", range(200))
def test_it_is_the_longest_that_trying_finds(seed: int) -> None:
    die = random.Random(seed)
    size, blocks = die.choice([4, 8]), die.randrange(0, 12)
    kinds = [die.randrange(1, 5 * size) for _ in range(die.randrange(0, 3))]
    windows = [Window.of(one, [die.random() < 0.8 for _ in range(blocks)]) for one in kinds]
    chain = die.randrange(0, blocks + 1)
    align, most = die.choice([2, size, 2 * size]), die.randrange(0, blocks * size + 5)
    found = usable_tokens(chain, windows, size, align, most)
    assert found == tried(chain, windows, size, align, most)


def test_a_token_sees_itself_and_the_window_s_rest_before_it() -> None:
    assert [window_start(end, 4) for end in (0, 2, 3, 4, 10)] == [0, 0, 0, 1, 7]
