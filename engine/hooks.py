"""Where a KV pool meets the engine: what it is told, when, and what it may do then.

All hooks run on the engine's thread, inside `EngineCore.step` or `abort`; the step waits for them.
In order, for one sequence:

    comes          it may enter; or more of it is in the pool if it waits for the next step
    admitted       it has its pages; the pool may fill the first ones, over several steps
    chunk_started  a step is about to compute tokens [start, end) of some sequences
    layer_starting that step is about to write and read a layer's pages (layer-wise loads end here)
    layer_done     K and V of a layer are written for all of the step's tokens, and final
    chunk_done     the step is over; computed_tokens and tokens have moved on
    preempted      it gives its pages up, right after, and is admitted anew
    finished       it ends, by its last token or by abort; its pages are released right after

Of a step that only decodes and that the device runs as one (`graphs`), layer_starting is called for
all layers before it, and layer_done for all once the device was told to run it. All layers are then
final in the order of the device's stream, as one layer is where each has its turn.

A sequence aborted while it waits for its first pages is told of by none but `comes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Chunks
from typing import Protocol

from .sequence import Chunk, Sequence


class KVHooks(Protocol):
    """What the engine calls. An exception passes through `step`, which may then be called again."""

    def comes(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether what these compute in the next step is part of a waiting prompt, and will be in
        the pool after it."""

    def admitted(self, sequence: Sequence) -> int | None:
        """How many leading tokens have their KV in the sequence's pages now, 0 if none.

        None while they are still landing: the others go on, and it is asked again next step.

        Any number will do, not only whole pages. The engine takes all but one at most, since the
        last token is computed for its logits. At first a sequence's tokens are its prompt; when it
        has been preempted, that and what it has of its answer.
        """

    def chunk_started(self, chunks: Chunks[Chunk]) -> None:
        """The step computes these; no page has been touched."""

    def layer_starting(self, layer: int, chunks: Chunks[Chunk]) -> None:
        """The step touches the pages of `layer` after this returns, and not before."""

    def layer_done(self, layer: int, chunks: Chunks[Chunk]) -> None:
        """KV of `layer` for these chunks is in the pages, and final. Attention of the layer comes
        next, or has been."""

    def chunk_done(self, chunks: Chunks[Chunk]) -> None:
        """KV of all layers for these chunks is in the pages, and computed_tokens counts it."""

    def preempted(self, sequence: Sequence) -> None:
        """The sequence waits again; its pages hold computed_tokens tokens until this returns. It
        may have computed none, and its prefix may still be landing."""

    def finished(self, sequence: Sequence) -> None:
        """The sequence ends; its pages hold computed_tokens tokens until this returns. None, where
        it is aborted while it waits for pages anew."""


class NoHooks:
    """An engine with no pool. Subclass it to hear of some events only."""

    def comes(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        return False

    def admitted(self, sequence: Sequence) -> int | None:
        return 0

    def chunk_started(self, chunks: Chunks[Chunk]) -> None:
        pass

    def layer_starting(self, layer: int, chunks: Chunks[Chunk]) -> None:
        pass

    def layer_done(self, layer: int, chunks: Chunks[Chunk]) -> None:
        pass

    def chunk_done(self, chunks: Chunks[Chunk]) -> None:
        pass

    def preempted(self, sequence: Sequence) -> None:
        pass

    def finished(self, sequence: Sequence) -> None:
        pass
