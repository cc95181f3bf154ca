from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.gateway import prefixes
from kvstore.gateway.prefixes import HALF_LIFE_SECONDS, Prefixes

BLOCK = 16


def chain(*words: str) -> list[bytes]:
    """Each block's hash is of all words up to its end."""
    return ["/".join(words[: i + 1]).encode().ljust(32, b".") for i in range(len(words))]


def shown(found: list[dict[str, Any]]) -> list[tuple[int, int, float]]:
    return [(one["depth"], one["tokens"], round(one["requests"], 6)) for one in found]


def test_beginnings_that_prompts_share_are_a_tree_of_where_they_part() -> None:
    tree = Prefixes()
    for question in "xyz":
        tree.add(chain("system", "tools", "document", question), BLOCK, 0.0)
    tree.add(chain("system", "tools", "other", "v"), BLOCK, 0.0)
    tree.add(chain("system", "tools", "other", "w"), BLOCK, 0.0)
    tree.add(chain("alone", "here"), BLOCK, 0.0)
    found = tree.hottest(0.0)
    assert shown(found) == [(0, 2 * BLOCK, 5.0), (1, 3 * BLOCK, 3.0), (1, 3 * BLOCK, 2.0)]
    assert found[0]["share"] == pytest.approx(5 / 6)


def test_a_prompt_that_is_asked_again_is_one_beginning_to_its_end() -> None:
    tree = Prefixes()
    for _ in range(4):
        tree.add(chain("a", "b", "c"), BLOCK, 0.0)
    assert shown(tree.hottest(0.0)) == [(0, 3 * BLOCK, 4.0)]


def test_nothing_was_asked_for_and_nothing_is_shown() -> None:
    tree = Prefixes()
    assert tree.hottest(0.0) == []
    tree.add([], BLOCK, 0.0)
    assert tree.hottest(0.0) == []


def test_what_was_asked_for_long_ago_weighs_less() -> None:
    tree = Prefixes()
    for _ in range(8):
        tree.add(chain("old"), BLOCK, 0.0)
    for _ in range(3):
        tree.add(chain("new"), BLOCK, 2 * HALF_LIFE_SECONDS)
    found = tree.hottest(2 * HALF_LIFE_SECONDS)
    assert shown(found) == [(0, BLOCK, 3.0), (0, BLOCK, 2.0)]


def test_names_are_digits_of_a_hash_and_no_more() -> None:
    tree = Prefixes()
    tree.add([b"\xab" * 32], BLOCK, 0.0)
    tree.add([b"\xab" * 32], BLOCK, 0.0)
    assert tree.hottest(0.0)[0]["name"] == "ab" * 4


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=60), st.integers(1, 12))
def test_the_tree_is_bounded_and_keeps_what_weighs_most(
    prompts: list[list[str]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "BLOCKS_MAX", most)
        tree = Prefixes()
        for number, words in enumerate(prompts):
            tree.add(chain(*words), BLOCK, float(number))
            assert len(tree) <= most
            assert len(tree) == len(prefixes._all(tree._root)), "it is counted rightly"
        for one in [tree._root, *prefixes._all(tree._root)]:
            now = float(len(prompts))
            assert all(child.now(now) <= one.now(now) + 1e-9 for child in one.after.values())
