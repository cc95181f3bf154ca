"""An engine for the benches that measure prefills: a made model whose prefill is not too cheap.

A model with much KV and little arithmetic would make any transfer look dear, one with little KV
would make it look free. Each bench says its model's shape in its rows. Prompts are random and used
once, so that nothing is ever reused that a bench means to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from kvstore.engine.core import EngineCore, Event
from kvstore.engine.make_model import FIRST_WORD_ID, make_model
from kvstore.engine.pool import Pool
from kvstore.engine.sequence import Request

Say = Callable[[str], None]
VOCAB = 2048
ITEM_BYTES = 4  # made models are float32


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a model that is made for a bench."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    def make(self, folder: Path) -> Path:
        return make_model(folder, vocab=VOCAB, **asdict(self))

    @property
    def token_bytes(self) -> int:
        """KV of one token."""
        return self.layers * self.kv_heads * 2 * self.head_dim * ITEM_BYTES


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch computes with this many threads; the rows say so."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Prompts:
    """Random prompts; no two alike."""

    def __init__(self, tokens: int, seed: int = 0) -> None:
        self._tokens = tokens
        self._dice = np.random.default_rng(seed)

    def next(self) -> tuple[int, ...]:
        return tuple(self._dice.integers(FIRST_WORD_ID, VOCAB, self._tokens).tolist())


def prefill(core: EngineCore, prompt: tuple[int, ...], name: str = "bench") -> list[Event]:
    """Compute the prompt and the one token an engine makes at least, as the Prefill call does."""
    core.add(Request(name, prompt, 1, ignore_eos=True))
    events: list[Event] = []
    while not core.idle:
        events += core.step()
    return events


def check_published(pool: Pool, published: int, expected: int) -> None:
    """A pool's failures never stop an engine; they must stop a bench, or it measures nothing."""
    if pool.failures or published != expected:
        raise RuntimeError(
            f"{published} of {expected} blocks were published, {pool.failures} calls failed"
        )
