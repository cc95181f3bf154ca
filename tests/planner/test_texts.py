"""Prompts that begin alike are given the blocks they have in common, and no others."""

from __future__ import annotations

import itertools

import numpy as np

from kvstore.planner import texts
from kvstore.planner.load import Load
from kvstore.planner.texts import Prompts, Stems

STEMS = Stems.apart(np.array([5, 0]), block_tokens=2)  # two whole blocks and a token; nothing


def load_of(*prompts: tuple[float, int, int, int]) -> Load:
    """Of arrival, text, stem and tokens each. An answer's length tells its prompt's place."""
    arrival, text, stem, tokens = map(np.array, zip(*prompts, strict=True))
    answers = np.arange(1, len(prompts) + 1)
    load = texts.load(Prompts(arrival.astype(float), text, stem, tokens, answers), STEMS, 2)
    load.check()
    return load


def test_texts_of_one_stem_share_its_whole_blocks_and_prompts_of_one_text_theirs() -> None:
    load = load_of((0, 0, 0, 7), (1, 1, 0, 8), (2, 0, 0, 9), (3, 2, 1, 3))
    assert [load.blocks[a:b].tolist() for a, b in itertools.pairwise(load.first)] == [
        [0, 1, 2, 3],  # stem, stem, what the stem ends in, short
        [0, 1, 4, 5],
        [0, 1, 2, 6, 7],  # in the place of the short one there is a whole one now
        [8, 9],
    ]


def test_prompts_come_in_the_order_of_time_and_of_one_time_in_the_order_given() -> None:
    load = load_of(*((5 - 3 * (i % 2), i, 1, 2) for i in range(100)))
    assert load.arrival.tolist() == [0] * 50 + [3] * 50
    assert load.output_tokens.tolist() == [*range(2, 101, 2), *range(1, 101, 2)]


def test_the_shares_of_zipf_fall_with_the_rank() -> None:
    assert np.allclose(texts.zipf(3, 1), np.array([6, 3, 2]) / 11)
    assert np.allclose(texts.zipf(4, 0), 1 / 4)
