"""The engine's loop: add requests, step, and get tokens; greedy, one thread, no surprises.

A sequence's state moves only after its forward pass, so a step that an exception cuts short can be
run again: it rewrites the same KV into the same pages. Pages go back on every way out.
"""

from __future__ import annotations

from collections.abc import Sequence as Chunks
from dataclasses import dataclass
from pathlib import Path

import torch

from kvstore.logprobs import Logprobs

from .batch import Batch, Span
from .cache import PagedKV
from .device import CPU, Device
from .graphs import Graphs
from .hooks import KVHooks, NoHooks
from .logprobs import logprobs_of
from .model import Model
from .scheduler import Limits, Scheduler
from .sequence import Chunk, Finish, Request, Sequence
from .team import SOLO, Team


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token was produced: the index-th (from 0) of the request's output."""

    request_id: str
    index: int
    token: int
    logprobs: Logprobs | None = None  # where the request asks for them


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """A request is done. cached_tokens of its prompt came from the pool."""

    request_id: str
    reason: Finish
    output: tuple[int, ...]
    cached_tokens: int


Event = TokenEvent | FinishEvent


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How much an engine holds and computes at a time."""

    pages: int = 512
    page_tokens: int = 64
    max_batch_tokens: int = 512
    max_running: int = 64
    answer_tokens: int = 512


class EngineCore:
    """Model, cache and scheduler. Not thread-safe: one thread calls everything here."""

    def __init__(
        self,
        model: Model,
        settings: EngineSettings | None = None,
        hooks: KVHooks | None = None,
    ) -> None:
        chosen = settings or EngineSettings()
        self.model = model
        self.hooks: KVHooks = hooks or NoHooks()
        self.cache = PagedKV(model.config, chosen.pages, chosen.page_tokens, model.device.place)
        self.scheduler = Scheduler(
            Limits(
                max_batch_tokens=chosen.max_batch_tokens,
                max_running=chosen.max_running,
                max_request_tokens=min(
                    model.config.max_positions, chosen.pages * chosen.page_tokens
                ),
                answer_tokens=chosen.answer_tokens,
                vocab_size=model.config.vocab_size,
            )
        )
        limits = self.scheduler.limits
        # None: the device is told each kernel of each step.
        self.graphs = Graphs.of(model, self.cache, limits.max_running, limits.max_request_tokens)
        self._events: list[Event] = []

    @classmethod
    def load(
        cls,
        folder: str | Path,
        settings: EngineSettings | None = None,
        hooks: KVHooks | None = None,
        team: Team = SOLO,
        device: Device = CPU,
    ) -> EngineCore:
        """An engine for a local Hugging Face folder, or this rank's part of one."""
        return cls(Model.load(folder, team, device), settings, hooks)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.scheduler.waiting and not self.scheduler.running

    def add(self, request: Request) -> Sequence:
        """Queue a request; it is admitted in a later step. Raises `BadRequest` if it cannot run."""
        return self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """End a request now, its pages freed; False where there is none of this id. No event."""
        # Left over where a step was cut short, of one that it ended too: another request may have
        # this id by the next one.
        self._events = [event for event in self._events if event.request_id != request_id]
        sequence = self.scheduler.find(request_id)
        if sequence is None:
            return False
        sequence.finish = Finish.ABORT
        self._retire(sequence)
        return True

    def step(self) -> list[Event]:
        """Admit whom there are pages for, compute one batch, and say what came of it."""
        self._retire_finished()  # left over only where a hook raised in the step before
        self._grow()
        self._admit()
        chunks = self.scheduler.plan()
        if chunks:
            self._compute(chunks)
            self.hooks.chunk_done(chunks)
            self._retire_finished()
        events, self._events = self._events, []
        return events

    def _grow(self) -> None:
        """Pages for the next token of each, in the order in which they entered."""
        running, size = self.scheduler.running, self.cache.page_tokens
        for sequence in [*running.values()]:
            while sequence.id in running and sequence.room(size) < len(sequence.tokens):
                table = self.cache.grow(sequence.id, len(sequence.tokens))
                if table is None:
                    self._preempt(self.scheduler.gives_way(size))
                else:
                    sequence.block_table = table

    def _preempt(self, sequence: Sequence) -> None:
        try:
            self.hooks.preempted(sequence)
        finally:
            self.scheduler.wait_again(sequence)
            self.cache.release(sequence.id)

    def _admit(self) -> None:
        for loading in [one for one in self.scheduler.running.values() if one.loading]:
            self._ask(loading)
        line, cache, comes = self.scheduler, self.cache, self.hooks.comes
        while (first := line.next_in_line(comes)) is not None:
            if self._enters(first):
                continue
            other = line.passing(first, cache.allocator.free, cache.pages_for, comes)
            if other is None or not self._enters(other):
                return

    def _enters(self, sequence: Sequence) -> bool:
        """Whether there were pages for it."""
        table = self.cache.allocate(sequence.id, self.scheduler.room_on_entry(sequence))
        if table is None:
            return False
        sequence.block_table = table
        self.scheduler.enter(sequence)
        # Entered before the hook runs: should it raise, the prompt is simply computed here.
        self._ask(sequence)
        return True

    def _ask(self, sequence: Sequence) -> None:
        sequence.loading = False
        found = self.hooks.admitted(sequence)
        if found is None:
            sequence.loading = True
            return
        sequence.computed_tokens = max(0, min(found, len(sequence.tokens) - 1))
        if not sequence.answering:
            sequence.cached_tokens = sequence.computed_tokens

    def _compute(self, chunks: Chunks[Chunk]) -> None:
        self.hooks.chunk_started(chunks)
        with self.model.device.current():
            logits = self._logits(chunks)
        tokens, yielding = logits.argmax(-1), [one.sequence for one in chunks if one.last]
        fetch, wanted = self.model.device.fetch, [one.request.logprobs for one in yielding]
        said = logprobs_of(logits, tokens, wanted, fetch)
        for chunk in chunks:
            chunk.sequence.computed_tokens = chunk.end
        for sequence, token, logprobs in zip(yielding, fetch(tokens).tolist(), said, strict=True):
            self._take(sequence, token, logprobs)

    def _logits(self, chunks: Chunks[Chunk]) -> torch.Tensor:
        """Of each chunk that yields a token: (chunks that yield, vocab)."""
        spans = [Span(c.tokens, c.start, c.sequence.block_table, c.last) for c in chunks]
        if self.graphs is not None and self.graphs.fit(spans):
            # Nothing can be called in between. Hooks are promised no more than that a layer's pages
            # are not touched before the one returns, and are final when the other is called.
            layers = range(self.model.config.layers)
            for layer in layers:
                self.hooks.layer_starting(layer, chunks)
            logits = self.graphs.run(spans)
            for layer in layers:
                self.hooks.layer_done(layer, chunks)
            return logits
        return self.model.forward(
            Batch(spans, self.cache.page_tokens, self.model.device.send),
            self.cache,
            on_layer=lambda layer: self.hooks.layer_done(layer, chunks),
            before_layer=lambda layer: self.hooks.layer_starting(layer, chunks),
        )

    def _take(self, sequence: Sequence, token: int, logprobs: Logprobs | None) -> None:
        sequence.append(token)
        index = len(sequence.tokens) - sequence.prompt_len - 1
        self._events.append(TokenEvent(sequence.id, index, token, logprobs))

    def _retire_finished(self) -> None:
        for sequence in [one for one in self.scheduler.running.values() if one.finish]:
            assert sequence.finish is not None
            self._events.append(
                FinishEvent(
                    sequence.id,
                    sequence.finish,
                    tuple(sequence.output),
                    sequence.cached_tokens,
                )
            )
            self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        admitted = sequence.id in self.scheduler.running
        self.scheduler.remove(sequence)
        try:
            if admitted or sequence.gave_way:
                self.hooks.finished(sequence)
        finally:
            if admitted:
                self.cache.release(sequence.id)
