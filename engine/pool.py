"""The engine's side of the pool: prompts come in from it, and what is computed goes out to it.

The pool can only help. Whatever it answers, however it fails, the sequence goes on: blocks that
cannot be had are computed, blocks that cannot be stored are not. Errors are counted, never raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from collections.abc import Sequence as Chunks
from contextlib import contextmanager
from dataclasses import dataclass

from kvstore.client import PAGED, Chain, Client, Match, Writer
from kvstore.errors import KVStoreError

from .cache import PagedKV
from .hooks import NoHooks
from .pool_use import PoolUse
from .sequence import Chunk, Finish, Sequence

log = logging.getLogger(__name__)


class Pool(NoHooks):
    """Hooks that join an `EngineCore` to a `Client`. Runs on the engine's thread only."""

    def __init__(self, client: Client, cache: PagedKV) -> None:
        self._client = client
        self._cache = cache
        self._uses: dict[str, PoolUse] = {}
        self._ranges: dict[str, tuple[int, int]] = {}  # blocks that the step under way completes
        self._loaded = False
        self.failures = 0  # calls to the pool that failed, and were done without

    def expect(self, request_id: str, use: PoolUse) -> None:
        """Say what a request wants before it is added to the engine."""
        self._uses[request_id] = use

    def forget(self, request_id: str) -> None:
        """A request that never got pages is gone."""
        self._uses.pop(request_id, None)

    # -- coming in ----------------------------------------------------------------------------

    def admitted(self, sequence: Sequence) -> int | None:
        use = self._uses.setdefault(sequence.id, PoolUse())
        if not use.enabled:
            return 0
        if use.chain is not None:  # asked before: a hand-off that has not wholly landed
            return self._landed(use)
        use.chain = self._client.chain(sequence.request.prompt)
        with self._attempt():
            self._open(sequence, use)
        tokens = self._landed(use)
        if use.hand_offs is None:
            with self._attempt():
                self._reserve(use, tokens or 0)
        return tokens

    def _open(self, sequence: Sequence, use: PoolUse) -> None:
        """Open what there is of the prompt: all of it by its hand-off, or the matching prefix."""
        assert use.chain is not None
        memory = self._client.memory(self._cache.layers, PAGED, sequence.block_table)
        blocks = use.chain
        if use.hand_offs is None:
            found = self._client.match(blocks)
            use.miss = found.miss or ""
            blocks = blocks.between(0, found.blocks)
        if len(blocks):
            use.reader = self._client.reader(blocks, memory, hand_offs=use.hand_offs or ())
        use.progress = (time.monotonic(), 0)

    def landed(self) -> bool:
        """Whether anything was loaded since this was last asked."""
        loaded, self._loaded = self._loaded, False
        return loaded

    def _landed(self, use: PoolUse) -> int | None:
        """Tokens in the pages; None while a prefill that is followed has more to come."""
        reader = use.reader
        if reader is None:
            return 0
        had = reader.bytes_loaded
        finished = None
        with self._attempt():
            finished = reader.poll()
        self._loaded |= reader.bytes_loaded > had
        if finished is False and not use.stalled():
            return None
        reader.close()
        use.reader = None
        if finished is None:  # what was copied has not been confirmed
            return 0
        use.pool_tokens = reader.sealed_tokens
        use.hand_off_tokens = reader.tokens - reader.sealed_tokens
        use.loaded_bytes = reader.bytes_loaded
        use.miss = reader.miss or use.miss
        return reader.tokens

    # -- going out ----------------------------------------------------------------------------

    def _reserve(self, use: PoolUse, tokens: int) -> None:
        """Windows on the blocks of the prompt that did not come from the pool."""
        assert use.chain is not None
        first = sum(end <= tokens for end in use.chain.ends)
        hand_offs, wanted = (b"",) * first, use.reserved is not None
        if first < len(use.chain):
            use.writer = self._client.writer(use.chain, first=first, hand_off=wanted)
            hand_offs += use.writer.hand_offs
        if use.reserved is not None:
            use.reserved(hand_offs)

    def chunk_started(self, chunks: Chunks[Chunk]) -> None:
        self._ranges = {}
        for chunk in chunks:
            use = self._uses.get(chunk.sequence.id)
            if use is not None and use.writer is not None:
                assert use.chain is not None
                self._ranges[chunk.sequence.id] = _completed(use.writer, use.chain, chunk)

    def layer_done(self, layer: int, chunks: Chunks[Chunk]) -> None:
        for chunk in chunks:
            first, last = self._ranges.get(chunk.sequence.id, (0, 0))
            if first < last:
                self._store(chunk.sequence, layer, (first, last))

    def _store(self, sequence: Sequence, layer: int, blocks: tuple[int, int]) -> None:
        use = self._uses[sequence.id]
        if use.writer is None:
            return
        tensor, table = self._cache.layers[layer], sequence.block_table
        with self._attempt() as attempt:
            use.writer.put_layer(layer, tensor, PAGED, block_table=table, blocks=blocks)
        if attempt.failed:
            self._stop_writing(use)

    def chunk_done(self, chunks: Chunks[Chunk]) -> None:
        for chunk in chunks:
            first, last = self._ranges.get(chunk.sequence.id, (0, 0))
            use = self._uses.get(chunk.sequence.id)
            if first == last or use is None or use.writer is None:
                continue
            with self._attempt() as attempt:
                use.published_blocks += len(use.writer.seal((first, last)))
            if attempt.failed:
                self._stop_writing(use)

    def finished(self, sequence: Sequence) -> None:
        use = self._uses.pop(sequence.id, None)
        if use is None:
            return
        if use.reader is not None:
            use.reader.close()
        if use.writer is not None:
            use.writer.abort()  # whatever a cut-short prompt left unsealed
        if (
            use.enabled
            and sequence.finish is not Finish.ABORT
            and sequence.request.max_new_tokens > 1
        ):
            with self._attempt():
                use.published_blocks += self._publish_reply(sequence)

    def _publish_reply(self, sequence: Sequence) -> int:
        """Store the full blocks of prompt and reply, so that the next turn finds them."""
        known = self._client.chain(sequence.tokens[: sequence.computed_tokens]).full()
        if not len(known):
            return 0
        found: Match = self._client.match(known)
        if found.blocks == len(known):
            return 0
        memory = self._client.memory(self._cache.layers, PAGED, sequence.block_table)
        return self._client.put(known, memory, first=found.blocks)

    def _stop_writing(self, use: PoolUse) -> None:
        if use.writer is not None:
            use.writer.abort()
        use.writer, use.complete = None, False

    @contextmanager
    def _attempt(self) -> Iterator[_Attempt]:
        """Ask the pool for something; its failure is counted, and done without."""
        attempt = _Attempt()
        try:
            yield attempt
        except KVStoreError as error:
            attempt.failed = True
            self.failures += 1
            log.warning("doing without the pool: %s", error)


@dataclass(slots=True)
class _Attempt:
    failed: bool = False


def _completed(writer: Writer, chain: Chain, chunk: Chunk) -> tuple[int, int]:
    """Blocks [a, b) of the prompt's chain whose last token the chunk computes, less those held."""
    size = chain.block_tokens
    first = chunk.start // size
    last = len(chain) if chunk.end >= chain.token_count else chunk.end // size
    first = max(first, writer.first)
    return first, max(first, last)
