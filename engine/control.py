"""The demo's control: proof that its token check can fail, by spoiling fetched KV on purpose.

For a prompt whose prefix is in the pool, the KV is fetched as an engine fetches it, and then one
block, or one strip, is overwritten with another's. The tokens, and the logits at the last prompt
position, must show it; and the unspoiled fetch must lie as close to a full recompute as arithmetic
allows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kvstore.client import PAGED, Client

from .batch import Batch, Span
from .cache import PagedKV
from .model import Model

NEW_TOKENS = 16  # generated after each spoiling
CHUNK_TOKENS = 512
# The recompute is cut otherwise than the engines cut it, so that the clean difference is what
# arithmetic in another order makes, and not zero by construction.
RECOMPUTE_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """What spoiling one hit did."""

    block_changed_tokens: bool  # one whole block swapped: other tokens came out
    clean_difference: float  # largest logit difference, fetched against recomputed
    strip_difference: float  # the same with one strip swapped, against the clean fetch

    @property
    def strip_ratio(self) -> float:
        return self.strip_difference / max(self.clean_difference, 1e-9)


class Control:
    """A model and a cache of its own, and the pool's client."""

    def __init__(self, folder: Path, client: Client, tokens_max: int, seed: int) -> None:
        self._model = Model.load(folder)
        self._client = client
        self._size = client.space.layout.block_tokens
        pages = -(-(tokens_max + NEW_TOKENS) // self._size) + 1
        self._cache = PagedKV(self._model.config, pages, self._size)
        self._table = np.arange(pages, dtype=np.int32)
        self._dice = random.Random(seed)

    def sample(self, prompt: Sequence[int]) -> Sample | None:
        """Spoil this prompt's hit; None if the pool holds fewer than two whole blocks of it."""
        blocks = self._client.chain(prompt[:-1]).full()
        memory = self._client.memory(self._cache.layers, PAGED, self._table)
        loaded = self._client.get(blocks, memory)
        if loaded.blocks < 2:
            return None
        kept = self._cache.storage.clone()
        clean_tokens, clean = self._generate(prompt, loaded.tokens)
        spoiled, source = self._dice.sample(range(loaded.blocks), 2)

        self._cache.storage.copy_(kept)
        self._cache.storage[:, spoiled] = self._cache.storage[:, source]
        block_tokens, _ = self._generate(prompt, loaded.tokens)

        self._cache.storage.copy_(kept)
        layer = self._dice.randrange(self._model.config.layers)
        head = self._dice.randrange(self._model.config.kv_heads)
        strip = self._cache.storage[layer, source, head].clone()
        self._cache.storage[layer, spoiled, head] = strip
        _, moved = self._generate(prompt, loaded.tokens, 1)

        _, recomputed = self._generate(prompt, 0, 1, RECOMPUTE_TOKENS)
        return Sample(
            block_changed_tokens=block_tokens != clean_tokens,
            clean_difference=float((clean - recomputed).abs().max()),
            strip_difference=float((moved - clean).abs().max()),
        )

    def _generate(
        self,
        prompt: Sequence[int],
        cached: int,
        new_tokens: int = NEW_TOKENS,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> tuple[list[int], torch.Tensor]:
        """Greedy tokens, and the logits at the last prompt position, over `cached` tokens of KV."""
        tokens, at, first = list(prompt), min(cached, len(prompt) - 1), None
        while len(tokens) < len(prompt) + new_tokens:
            end = min(at + chunk_tokens, len(tokens))
            span = Span(tokens[at:end], at, self._table, end == len(tokens))
            logits = self._model.forward(Batch([span], self._size), self._cache)
            at = end
            if end == len(tokens):
                first = logits[0] if first is None else first
                tokens.append(int(logits[0].argmax()))
        assert first is not None
        return tokens[len(prompt) :], first
