"""How long an engine's prompts and steps take. Around other hooks it hears all that they hear, on
the engine's thread.

A prompt's time to its first token has three parts here: it waits (for pages, for its turn), its KV
is loaded, and what is left of it is computed. What is given up counts in none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Chunks
from dataclasses import dataclass

from kvstore import traces
from kvstore.telemetry import Telemetry

from .hooks import KVHooks
from .sequence import Chunk, Sequence


@dataclass(slots=True)
class _Prompt:
    """One that is not computed yet; moments of the monotonic clock."""

    came: float
    trace: str = ""  # the span of whoever asked
    loads: float = 0.0  # since when; 0: not yet
    loaded: float = 0.0
    computes: float = 0.0


class Measuring:
    """Hooks that pass on, and time."""

    def __init__(self, hooks: KVHooks, telemetry: Telemetry) -> None:
        self._hooks, self._telemetry = hooks, telemetry
        self._prompts: dict[str, _Prompt] = {}
        self._since = 0.0

    def came(self, request_id: str, trace: str = "") -> None:
        """One that is let in; it waits. `trace` is the span that its own are parts of."""
        self._prompts[request_id] = _Prompt(time.monotonic(), trace)

    def forget(self, request_id: str) -> None:
        """It is over, one way or another."""
        self._prompts.pop(request_id, None)

    def comes(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        return self._hooks.comes(sequence, running)

    def admitted(self, sequence: Sequence) -> int | None:
        prompt = self._prompts.get(sequence.id)
        if prompt is not None and not prompt.loads:
            prompt.loads = time.monotonic()
        with traces.within(prompt.trace if prompt is not None else ""):
            found = self._hooks.admitted(sequence)
        if prompt is not None and found is not None:
            prompt.loaded = time.monotonic()
        return found

    def chunk_started(self, chunks: Chunks[Chunk]) -> None:
        self._since = time.monotonic()
        for chunk in chunks:
            prompt = self._prompts.get(chunk.sequence.id)
            if prompt is not None and not prompt.computes:
                prompt.computes = self._since
        self._hooks.chunk_started(chunks)

    def layer_starting(self, layer: int, chunks: Chunks[Chunk]) -> None:
        self._hooks.layer_starting(layer, chunks)

    def layer_done(self, layer: int, chunks: Chunks[Chunk]) -> None:
        self._hooks.layer_done(layer, chunks)

    def chunk_done(self, chunks: Chunks[Chunk]) -> None:
        self._hooks.chunk_done(chunks)
        now = time.monotonic()
        if all(chunk.end - chunk.start == 1 for chunk in chunks):
            self._telemetry.observe("step_seconds", now - self._since)
        for chunk in chunks:
            if chunk.last and chunk.end == chunk.sequence.prompt_len:
                self._computed(chunk.sequence, now)

    def preempted(self, sequence: Sequence) -> None:
        self._telemetry.add("preemptions")
        if (prompt := self._prompts.get(sequence.id)) is not None:  # it waits as it did at first
            prompt.loads = prompt.loaded = prompt.computes = 0.0
        self._hooks.preempted(sequence)

    def finished(self, sequence: Sequence) -> None:
        self.forget(sequence.id)
        self._hooks.finished(sequence)

    def _computed(self, sequence: Sequence, now: float) -> None:
        prompt = self._prompts.pop(sequence.id, None)
        if prompt is None:
            return
        waited = prompt.loads - prompt.came + max(0.0, prompt.computes - prompt.loaded)
        self._telemetry.observe("prompt_wait_seconds", waited)
        if sequence.cached_tokens:
            source = "hand_off" if sequence.request.follows else "pool"
            self._telemetry.observe("load_seconds", prompt.loaded - prompt.loads, source)
        self._telemetry.observe("prefill_seconds", now - prompt.computes)
        for name, began, ended in (
            ("wait", prompt.came, prompt.loads),
            ("load", prompt.loads, prompt.loaded),
            ("prefill", prompt.computes, now),
        ):
            traces.told(name, prompt.trace, began, ended)
