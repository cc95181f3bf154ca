"""What conductors hear of this engine: which prompts wait, run and are over, how much it decodes,
and what steps took. Around the pool's hooks it hears all that they hear, on the engine's thread.

A prefill is measured where a step computed one prompt's tokens and nothing else, a decode step
where it computed one token of each. A request that follows a prefill by its hand-off waits for that
and not for this engine, so it is told of only once it is decoded here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Chunks

from kvstore.client.teller import Teller

from .hooks import KVHooks
from .sequence import Chunk, Sequence


class Telling:
    """Hooks that pass on to the pool's, and tell."""

    def __init__(self, hooks: KVHooks, teller: Teller) -> None:
        self._hooks, self._teller = hooks, teller
        self._began: set[str] = set()
        self._decoding: dict[str, int] = {}  # tokens of each
        self._since = 0.0

    def comes(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        return self._hooks.comes(sequence, running)

    def admitted(self, sequence: Sequence) -> int | None:
        return self._hooks.admitted(sequence)

    def chunk_started(self, chunks: Chunks[Chunk]) -> None:
        for chunk in chunks:
            if chunk.start < chunk.sequence.prompt_len and chunk.sequence.id not in self._began:
                self._began.add(chunk.sequence.id)
                self._teller.began(chunk.sequence.id)
        self._since = time.monotonic()
        self._hooks.chunk_started(chunks)

    def layer_starting(self, layer: int, chunks: Chunks[Chunk]) -> None:
        self._hooks.layer_starting(layer, chunks)

    def layer_done(self, layer: int, chunks: Chunks[Chunk]) -> None:
        self._hooks.layer_done(layer, chunks)

    def chunk_done(self, chunks: Chunks[Chunk]) -> None:
        self._hooks.chunk_done(chunks)
        self._measure(chunks, time.monotonic() - self._since)
        for chunk in chunks:
            sequence = chunk.sequence
            if chunk.last and chunk.end == sequence.prompt_len:
                self._teller.ended(sequence.id)
                if sequence.finish is None:
                    self._decoding[sequence.id] = 0
                    self._teller.decoding(sequence.id)
            if sequence.id in self._decoding:
                self._decoding[sequence.id] = len(sequence.tokens)
        self._teller.load(len(self._decoding), sum(self._decoding.values()))

    def finished(self, sequence: Sequence) -> None:
        self._began.discard(sequence.id)
        if self._decoding.pop(sequence.id, None) is not None:
            self._teller.over(len(sequence.tokens) - sequence.prompt_len)
            self._teller.load(len(self._decoding), sum(self._decoding.values()))
        self._hooks.finished(sequence)

    def _measure(self, chunks: Chunks[Chunk], seconds: float) -> None:
        if all(chunk.end - chunk.start == 1 for chunk in chunks):
            context = sum(chunk.end for chunk in chunks)
            self._teller.stepped(len(chunks), context, seconds)
        elif len(chunks) == 1:
            (chunk,) = chunks
            self._teller.prefilled(chunk.end - chunk.start, chunk.start, seconds)
