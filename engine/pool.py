"""The engine's side of the pool: prompts come in from it, and what is computed goes out to it.

The pool can only help. Whatever it answers, however it fails, the sequence goes on: blocks that
cannot be had are computed, blocks that cannot be stored are not. Errors are counted, never raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Chunks
from dataclasses import dataclass, field

from kvstore.client import PAGED, Chain, Client, Match, Reader, Writer
from kvstore.errors import KVStoreError

from .cache import PagedKV
from .hooks import NoHooks
from .sequence import Chunk, Finish, Sequence

log = logging.getLogger(__name__)

STALLED_SECONDS = 5.0  # a hand-off that brings nothing new for this long is given up


@dataclass(slots=True)
class PoolUse:
    """What one request wants of the pool, and what came of it."""

    enabled: bool = True
    hand_offs: tuple[bytes, ...] | None = None  # follow a prefill, instead of asking by prefix
    reserved: Callable[[tuple[bytes, ...]], None] | None = None  # told the hand-off to pass on
    chain: Chain | None = None  # of the prompt
    pool_tokens: int = 0
    hand_off_tokens: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    miss: str = ""
    published_blocks: int = 0
    complete: bool = True  # whether everything that was reserved has been sealed
    reader: Reader | None = field(default=None, repr=False)
    writer: Writer | None = field(default=None, repr=False)
    progress: tuple[float, int] = (0.0, 0)  # when the reader last brought something, and its bytes


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
        self._try(lambda: self._open(sequence, use))
        tokens = self._landed(use)
        if use.hand_offs is None:
            self._try(lambda: self._reserve(use, tokens or 0))
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
        started, had = time.perf_counter(), reader.bytes_loaded
        finished = self._try(reader.poll)
        self._loaded |= reader.bytes_loaded > had
        use.load_seconds += time.perf_counter() - started
        if finished is False and not _stalled(use, reader):
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
        hand_offs = (b"",) * first
        if first < len(use.chain):
            use.writer = self._client.writer(use.chain, first=first, hand_off=True)
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
        tensor, table = self._cache.layers[layer], sequence.block_table

        def store() -> None:
            if use.writer is not None:
                use.writer.put_layer(layer, tensor, PAGED, block_table=table, blocks=blocks)

        if not self._try(store, True):
            self._stop_writing(use)

    def chunk_done(self, chunks: Chunks[Chunk]) -> None:
        for chunk in chunks:
            first, last = self._ranges.get(chunk.sequence.id, (0, 0))
            use = self._uses.get(chunk.sequence.id)
            if first == last or use is None or use.writer is None:
                continue
            writer = use.writer
            sealed = self._try(lambda writer=writer, blocks=(first, last): writer.seal(blocks))
            if sealed is None:
                self._stop_writing(use)
            else:
                use.published_blocks += len(sealed)

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
            use.published_blocks += self._try(lambda: self._publish_reply(sequence)) or 0

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

    def _try(self, call: Callable[[], object], default: object = None):  # type: ignore[no-untyped-def]
        """The call's answer (`default` where it has none), or None and a count if the pool failed."""
        try:
            answer = call()
        except KVStoreError as error:
            self.failures += 1
            log.warning("doing without the pool: %s", error)
            return None
        return default if answer is None else answer


def _stalled(use: PoolUse, reader: Reader) -> bool:
    """Whether a followed prefill has brought nothing new for too long."""
    since, seen = use.progress
    if reader.bytes_loaded > seen:
        use.progress = (time.monotonic(), reader.bytes_loaded)
        return False
    return time.monotonic() - since > STALLED_SECONDS


def _completed(writer: Writer, chain: Chain, chunk: Chunk) -> tuple[int, int]:
    """Blocks [a, b) of the prompt's chain whose last token the chunk computes, less those held."""
    size = chain.block_tokens
    first = chunk.start // size
    last = len(chain) if chunk.end >= chain.token_count else chunk.end // size
    first = max(first, writer.first)
    return first, max(first, last)
