"""What conductors hear of this engine: which prompts wait, run and are over, how much it decodes,
and what steps took. Around the pool's hooks it hears all that they hear, on the engine's thread.

A prefill is measured where steps computed one prompt's tokens and nothing else, a decode step where
it computed one token of each; both up to a token, since until then a device may compute behind what
it was told. A request that follows a prefill by its hand-off waits for that
and not for this engine, so it is told of only once it has its first token here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Chunks
from dataclasses import dataclass

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
        self._run: _Run | None = None  # of steps of which no token has come yet

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
        self._load()

    def preempted(self, sequence: Sequence) -> None:
        """It counts on: there must be room for it, as soon as there is any."""
        self._hooks.preempted(sequence)

    def finished(self, sequence: Sequence) -> None:
        self._began.discard(sequence.id)
        if self._decoding.pop(sequence.id, None) is not None:
            self._teller.over(len(sequence.tokens) - sequence.prompt_len)
            self._load()
        self._hooks.finished(sequence)

    def _load(self) -> None:
        self._teller.load(len(self._decoding), sum(self._decoding.values()))

    def _measure(self, chunks: Chunks[Chunk], seconds: float) -> None:
        run, first = self._run, chunks[0]
        if run is None:
            run = _Run(first.sequence.id, first.start, len(chunks) == 1)
        run.alone = run.alone and len(chunks) == 1 and first.sequence.id == run.prompt
        run.seconds += seconds
        if not any(chunk.last for chunk in chunks):
            run.steps, self._run = run.steps + 1, run
            return
        self._run = None
        if run.steps == 0 and all(chunk.end - chunk.start == 1 for chunk in chunks):
            self._teller.stepped(len(chunks), sum(chunk.end for chunk in chunks), seconds)
        elif run.alone:
            self._teller.prefilled(first.end - run.start, run.start, run.seconds)


@dataclass(slots=True)
class _Run:
    """Steps up to the first of which a token came."""

    prompt: str
    start: int  # of its tokens
    alone: bool  # nothing else was computed
    seconds: float = 0.0
    steps: int = 0  # before the one that is over
