"""A load of chats over documents, as requests with moments at which they come: the same by seed.

Each chat begins with one of a few documents, which others begin with too, and each of its turns is
the turn before, an answer, and a new question. The answers are made up, so that all prompts are
known beforehand and requests come when they come, whoever is done with what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.engine import VOCAB
from kvstore.engine.make_model import FIRST_WORD_ID
from kvstore.gateway.request import Request


@dataclass(frozen=True, slots=True)
class Shape:
    """What comes. The first request of a document computes all of it."""

    documents: int = 8
    document_tokens: int = 1_024
    chats: int = 80
    turns: int = 3
    turn_tokens: tuple[int, int] = (32, 160)
    new_tokens: int = 8
    rate: float = 1.25  # requests a second, on average
    pause_seconds: float = 5.0  # from a turn of a chat to the next, on average
    vocabulary: int = VOCAB  # of the model


@dataclass(frozen=True, slots=True)
class Coming:
    """One request and its moment, in seconds from the first."""

    at: float
    request: Request


def load(shape: Shape, seed: int) -> list[Coming]:
    """In the order in which they come."""
    dice = np.random.default_rng(seed)

    def words(count: int) -> list[int]:
        found: list[int] = dice.integers(FIRST_WORD_ID, shape.vocabulary, count).tolist()
        return found

    documents = [words(shape.document_tokens) for _ in range(shape.documents)]
    spread = shape.chats * shape.turns / shape.rate
    first = max(0.0, spread - shape.turns * shape.pause_seconds)
    found = []
    for chat in range(shape.chats):
        prompt = list(documents[int(dice.integers(shape.documents))])
        at = float(dice.uniform(0.0, first))
        for turn in range(shape.turns):
            prompt += words(int(dice.integers(*shape.turn_tokens)))
            name = f"chat {chat} turn {turn}"
            request = Request(name, tuple(prompt), shape.new_tokens, ignore_eos=True)
            found.append(Coming(at, request))
            prompt += words(shape.new_tokens)
            at += float(dice.exponential(shape.pause_seconds))
    found.sort(key=lambda one: one.at)
    start = found[0].at
    return [Coming(one.at - start, one.request) for one in found]


def reworded(coming: Sequence[Coming], seed: int, vocabulary: int) -> list[Coming]:
    """The same requests in other words, so that nothing is found of what came before: each word
    stands for another throughout, and the requests have other ids."""
    words = np.arange(vocabulary)
    words[FIRST_WORD_ID:] = np.random.default_rng(seed).permutation(words[FIRST_WORD_ID:])
    return [
        Coming(one.at, replace(one.request, id=f"{one.request.id} in words {seed}",
                               prompt=tuple(words[list(one.request.prompt)].tolist())))
        for one in coming
    ]  # fmt: skip


def at_rate(coming: Sequence[Coming], rate: float) -> list[Coming]:
    """The same requests, so many a second in the mean."""
    factor = len(coming) / (rate * coming[-1].at)
    return [Coming(factor * one.at, one.request) for one in coming]


def hit_share_max(coming: Sequence[Coming], block_tokens: int) -> float:
    """Share of tokens that a cache which forgets nothing has of them, in whole blocks."""
    seen: set[tuple[int, ...]] = set()
    found = tokens = 0
    for one in coming:
        prompt = one.request.prompt
        ends = range(block_tokens, len(prompt) + 1, block_tokens)
        found += block_tokens * sum(prompt[:end] in seen for end in ends)
        seen.update(prompt[:end] for end in ends)
        tokens += len(prompt)
    return found / tokens
