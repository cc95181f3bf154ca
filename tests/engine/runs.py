"""Runs of the engine that several tests need: prompts, driving to the end, and a copying pool."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from kvstore.engine.core import EngineCore, Event, FinishEvent, TokenEvent
from kvstore.engine.hooks import NoHooks
from kvstore.engine.sequence import Chunk, Request
from kvstore.engine.sequence import Sequence as Running

Pages = list[torch.Tensor]  # one tensor a layer, (pages, kv_heads, page_tokens, 2, head_dim)


def prompt(length: int, seed: int = 0, vocab: int = 500) -> list[int]:
    """Random token ids below `vocab`, the same for the same arguments."""
    draw = random.Random(f"{length} {seed}")
    return [draw.randrange(vocab) for _ in range(length)]


def request(tokens: Iterable[int], new: int = 12, name: str = "r") -> Request:
    return Request(name, tuple(tokens), new, ignore_eos=True)


STEPS_MAX = 2_000


def finish(core: EngineCore, earlier: Iterable[Event] = ()) -> dict[str, list[int]]:
    """Step until idle; each finished request's output, checked against its token events.

    `earlier` are the events of steps taken before.
    """
    events = list(earlier)
    for _ in range(STEPS_MAX):
        if core.idle:
            break
        events += core.step()
    assert core.idle
    core.cache.check()
    assert core.cache.allocator.free == core.cache.allocator.pages
    streamed: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            tokens = streamed.setdefault(event.request_id, [])
            assert event.index == len(tokens)
            tokens.append(event.token)
    outputs = {e.request_id: list(e.output) for e in events if isinstance(e, FinishEvent)}
    assert all(outputs[name] == streamed[name] for name in outputs)
    return outputs


def run(core: EngineCore, tokens: Iterable[int], new: int = 12) -> list[int]:
    """The output of one request on its own."""
    core.add(request(tokens, new))
    return finish(core)["r"]


class CopyingPool(NoHooks):
    """Keeps the pages of the last finished sequence, and serves `offer` tokens of what it kept."""

    def __init__(self) -> None:
        self.core: EngineCore | None = None
        self.kept: Pages = []
        self.offer = 0
        self.computed: list[tuple[int, int]] = []

    def admitted(self, sequence: Running) -> int | None:
        self.computed = []
        if self.offer:
            for layer in range(len(self.kept)):
                self.fill(layer, sequence)
        return self.offer

    def fill(self, layer: int, sequence: Running) -> None:
        assert self.core is not None
        count = self.core.cache.pages_for(self.offer)
        self.core.cache.layers[layer][_index(sequence)[:count]] = self.kept[layer][:count]

    def chunk_done(self, chunks: Sequence[Chunk]) -> None:
        self.computed += [(c.start, c.end) for c in chunks]

    def finished(self, sequence: Running) -> None:
        assert self.core is not None
        assert sequence.computed_tokens == len(sequence.tokens) - 1
        if not self.offer:
            self.kept = [layer[_index(sequence)].clone() for layer in self.core.cache.layers]


def _index(sequence: Running) -> torch.Tensor:
    return torch.from_numpy(sequence.block_table.astype(np.int64))
