"""The engine's side of the pool: prompts come in from it, and what is computed goes out to it.

The pool can only help. Whatever it answers, however it fails, the sequence goes on: blocks that
cannot be had are computed, blocks that cannot be stored are not. Errors are counted, never raised.

Each rank of a team loads and publishes its own heads of a block. What one of them lacks, all
compute; a block that one of them does not store is never sealed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Chunks
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvstore.client import PAGED, Chain, Client, Fragment, Memory, Miss, Windows
from kvstore.content import salted
from kvstore.errors import KVStoreError

from .cache import PagedKV
from .device import CPU, Device
from .hooks import NoHooks
from .pool_use import Found, PoolUse, agreed, same_copies
from .sequence import Chunk, Finish, Request, Sequence
from .shard import KVHeads
from .storing import evenly, tapering
from .team import SOLO, Team

log = logging.getLogger(__name__)


class Pool(NoHooks):
    """Hooks that join an `EngineCore` to a `Client`. Runs on the engine's thread only."""

    def __init__(
        self, client: Client, cache: PagedKV, team: Team = SOLO, device: Device = CPU
    ) -> None:
        self._client = client
        self._storing = device.storing(device.place)
        self._cache = cache
        self._team = team
        layout = client.space.layout
        self._heads = KVHeads.of(layout.kv_heads, team.rank, team.ranks)
        self._fragment = Fragment(0, layout.layers, self._heads.first, self._heads.count)
        self._block_layer_bytes = self._heads.count * layout.strip_bytes(layout.block_tokens)
        self._uses: dict[str, PoolUse] = {}
        self._puts: dict[str, _Puts] = {}  # of the step under way
        self._loaded = False
        self.failures = 0  # calls to the pool that failed, and were done without

    def expect(self, request_id: str, use: PoolUse) -> None:
        """Say what a request wants before the engine's next step."""
        self._uses[request_id] = use

    def forget(self, request_id: str) -> None:
        """A request that never got pages is gone."""
        self._uses.pop(request_id, None)

    def hashes(self, request: Request) -> list[bytes]:
        """Of a prompt's blocks, as the pool names them."""
        return list(self._client.chain(request.prompt, salted(request.salt)).hashes)

    # -- coming in ----------------------------------------------------------------------------

    def comes(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        use = self._uses.get(sequence.id)
        if use is None or not use.enabled:
            return False
        size, request = self._client.space.layout.block_tokens, sequence.request
        for one in running:
            of = self._uses.get(one.id)
            # One that follows a prefill stores nothing that it computes until it is over.
            if of is None or not of.enabled or of.hand_offs is not None:
                continue
            if one.loading or one.remaining <= 1:
                continue
            end = (one.computed_tokens // size + 1) * size
            if (
                end <= min(one.prompt_len, sequence.prompt_len)
                and one.request.salt == request.salt
                and one.request.prompt[:end] == request.prompt[:end]
            ):
                return True
        return False

    def admitted(self, sequence: Sequence) -> int | None:
        use = self._uses.setdefault(sequence.id, PoolUse())
        if not use.enabled:
            return 0
        if use.chain is not None:  # asked before: a hand-off that has not wholly landed
            return self._landed(use)
        salt = salted(sequence.request.salt)
        use.chain = self._client.chain(sequence.tokens, salt)
        if sequence.answering:  # the block that its answer has come to is not over
            use.chain = use.chain.full()
        with self._attempt():
            self._open(sequence, use)
        use.found = Found(landing=use.reader is not None, miss=use.miss)
        tokens = self._landed(use)
        if use.hand_offs is None:
            with self._attempt() as attempt:
                self._reserve(use, tokens or 0)
            use.complete = not attempt.failed
        return tokens

    def _open(self, sequence: Sequence, use: PoolUse) -> None:
        """Open what there is of the prompt: all of it by its hand-off, or the matching prefix."""
        assert use.chain is not None
        memory = self._memory(sequence)
        blocks = use.chain
        if use.hand_offs is None:
            if self._on_its_way(blocks):
                self._settle_stores()
            found = self._client.match(blocks)
            use.miss = found.miss or ""
            blocks = blocks.between(0, found.blocks)
        if len(blocks):
            use.reader = self._client.reader(blocks, memory, hand_offs=use.hand_offs or ())
        use.progress = (time.monotonic(), 0)

    def _on_its_way(self, blocks: Chain) -> bool:
        """Whether some of it may be stored still: beside steps that are over."""
        return not self._storing.idle and any(of.stores_of(blocks) for of in self._uses.values())

    def landed(self) -> bool:
        """Whether anything was loaded since this was last asked."""
        loaded, self._loaded = self._loaded, False
        return loaded

    def _landed(self, use: PoolUse) -> int | None:
        """Tokens that all ranks have in their pages; None while more may come to one of them."""
        if use.found.landing:
            self._load(use)
        rows = self._team.exchange(use.found.numbers())
        found = agreed([Found.of(row) for row in rows])
        if found.landing:
            return None
        if found.tokens and not self._same_copies(use, found.tokens):
            found = Found(loaded_bytes=found.loaded_bytes, miss=Miss.EVICTED)
        use.read = None
        use.pool_tokens = found.sealed_tokens
        use.hand_off_tokens = found.tokens - found.sealed_tokens
        use.loaded_bytes = found.loaded_bytes
        use.miss = found.miss
        return found.tokens

    def _same_copies(self, use: PoolUse, tokens: int) -> bool:
        """Whether no rank's heads are another writer's: a block may change between two look-ups."""
        if self._team.ranks == 1:
            return True
        assert use.chain is not None and use.read is not None
        blocks = sum(end <= tokens for end in use.chain.ends)
        return same_copies(self._team.exchange(use.read.copies(blocks)))

    def _load(self, use: PoolUse) -> None:
        """Load what has landed for this rank."""
        reader = use.reader
        assert reader is not None
        had = reader.bytes_loaded
        finished = None
        with self._attempt():
            finished = reader.poll()
        self._loaded |= reader.bytes_loaded > had
        if finished is False and not use.stalled():
            return
        reader.close()
        use.reader, use.read = None, reader
        if finished is None:  # what was copied has not been confirmed
            use.found = Found(miss=use.miss)
            return
        use.found = Found(
            tokens=reader.tokens,
            sealed_tokens=reader.sealed_tokens,
            loaded_bytes=reader.bytes_loaded,
            miss=reader.miss or use.miss,
        )

    # -- going out ----------------------------------------------------------------------------

    def _reserve(self, use: PoolUse, tokens: int) -> None:
        """Windows on the blocks of the prompt that did not come from the pool. They are waited for
        by what is stored first, or by whoever is to be told of them."""
        assert use.chain is not None
        first = sum(end <= tokens for end in use.chain.ends)
        hand_offs, wanted = (b"",) * first, use.reserved is not None
        if first < len(use.chain) and self._heads.writes:
            windows = self._client.windows(
                use.chain,
                first=first,
                fragment=self._fragment,
                writer_group=use.writer_group,
                hand_off=wanted,
            )
            if wanted:
                hand_offs += windows.writer.hand_offs
            use.windows = windows  # none where they were refused: what is stored would ask anew
        if use.reserved is not None:
            use.reserved(hand_offs)

    def chunk_started(self, chunks: Chunks[Chunk]) -> None:
        self._storing.begin()
        self._puts = {}
        for chunk in chunks:
            use = self._uses.get(chunk.sequence.id)
            if use is None or use.windows is None:
                continue
            assert use.chain is not None
            first, last = _completed(use.windows.first, use.chain, chunk)
            if first < last:
                most = self._storing.layers((last - first) * self._block_layer_bytes)
                # Whoever follows waits for what is still to be stored of the last layers.
                cut = tapering if use.reserved is not None else evenly
                self._puts[chunk.sequence.id] = _Puts.of(
                    (first, last), cut(self._fragment.layers, most)
                )

    def layer_done(self, layer: int, chunks: Chunks[Chunk]) -> None:
        for chunk in chunks:
            puts = self._puts.get(chunk.sequence.id)
            if puts is not None and layer in puts.behind:
                self._store(chunk.sequence, puts.behind[layer], puts.blocks)

    def _store(self, sequence: Sequence, layers: range, blocks: tuple[int, int]) -> None:
        windows = self._uses[sequence.id].windows
        if windows is None:
            return
        part = Fragment(layers.start, len(layers), self._heads.first, self._heads.count)

        def put(computed: Any) -> None:
            memory = self._memory(sequence, layers)
            windows.writer.put(memory, part, blocks=blocks, after=computed)

        self._storing.store(sequence.id, put)

    def _settle_stores(self) -> None:
        """All that was computed is stored and sealed, or its request stores no more."""
        for request_id, error in self._storing.settle().items():
            self._failed(error)
            use = self._uses.get(request_id)
            if use is not None:
                self._stop_writing(use)

    def chunk_done(self, chunks: Chunks[Chunk]) -> None:
        """Have the step's blocks sealed behind their last layer. The next step waits for that only
        once it has been told; what failed is seen to when nothing is under way."""
        sealing = False
        for chunk in chunks:
            puts, use = self._puts.get(chunk.sequence.id), self._uses.get(chunk.sequence.id)
            if puts is not None and use is not None and use.windows is not None:
                self._storing.store(chunk.sequence.id, _sealing(use, use.windows, puts.blocks))
                sealing = True
        if sealing:
            self._storing.stepped()
        if self._storing.idle:
            self._settle_stores()

    def preempted(self, sequence: Sequence) -> None:
        use = self._uses[sequence.id]
        try:
            self._settle_stores()
        finally:
            _let_go(use)
        self._publish(sequence, use)
        if sequence.answering:  # nobody waits for it any more who prefilled it
            use.hand_offs = None
        use.begin_anew()

    def finished(self, sequence: Sequence) -> None:
        use = self._uses.get(sequence.id)
        try:
            self._settle_stores()
        finally:  # where that raises, too: nobody hears of the sequence again
            self._uses.pop(sequence.id, None)
            if use is not None:
                _let_go(use)
        if use is not None and sequence.finish is not Finish.ABORT:
            self._publish(sequence, use)

    def _publish(self, sequence: Sequence, use: PoolUse) -> None:
        """Of all that it has in its pages, which go."""
        if not use.enabled:
            return
        if sequence.request.max_new_tokens > 1:
            self._publish_reply(sequence, use)
        self._settle(use)

    def _publish_reply(self, sequence: Sequence, use: PoolUse) -> None:
        """Store the full blocks of prompt and reply, so that the next turn finds them."""
        tokens, salt = sequence.tokens[: sequence.computed_tokens], sequence.request.salt
        known = self._client.chain(tokens, salted(salt)).full()
        if not len(known):
            return
        found = len(known)
        with self._attempt():  # no match: it would count as looked for, and used, what is not
            found = [*self._client.exists_each(known), False].index(False)
        first = min(row[0] for row in self._team.exchange([found]))
        if first == len(known) or not self._heads.writes:
            return
        group = use.writer_group and f"{use.writer_group} reply"
        with (
            self._attempt(),
            self._client.writer(
                known, first=first, fragment=self._fragment, writer_group=group
            ) as writer,
        ):
            writer.put(self._memory(sequence))
            sealed = writer.seal()
            use.published_blocks += len(sealed) - sealed.count("EXISTED")

    def _settle(self, use: PoolUse) -> None:
        """What was published is what all ranks that write have sealed."""
        mine = (int(self._heads.writes), int(use.complete), use.published_blocks)
        writers = [row for row in self._team.exchange(mine) if row[0]]
        use.complete = all(row[1] for row in writers)
        use.published_blocks = min(row[2] for row in writers)

    def _memory(self, sequence: Sequence, layers: range | None = None) -> Memory:
        """The sequence's pages of these layers, or of all, as the part of each block that this rank
        has."""
        of = layers or range(self._fragment.layers)
        tensors, table = self._cache.layers[of.start : of.stop], sequence.block_table
        return self._client.memory(tensors, PAGED, table, self._heads.first, of.start)

    def _stop_writing(self, use: PoolUse) -> None:
        if use.windows is not None:
            use.windows.abort()
        use.windows, use.complete = None, False

    @contextmanager
    def _attempt(self) -> Iterator[_Attempt]:
        """Ask the pool for something; its failure is counted, and done without."""
        attempt = _Attempt()
        try:
            yield attempt
        except KVStoreError as error:
            attempt.failed = True
            self._failed(error)

    def _failed(self, error: KVStoreError) -> None:
        self.failures += 1
        log.warning("doing without the pool: %s", error)

    def close(self) -> None:
        """After the engine's last step."""
        self._storing.close()


@dataclass(frozen=True, slots=True)
class _Puts:
    """What a step stores of a prompt: blocks [a, b), and which layers once which is done."""

    blocks: tuple[int, int]
    behind: dict[int, range]

    @classmethod
    def of(cls, blocks: tuple[int, int], each: Iterable[range]) -> _Puts:
        return cls(blocks, {layers[-1]: layers for layers in each})


@dataclass(slots=True)
class _Attempt:
    failed: bool = False


def _let_go(use: PoolUse) -> None:
    """Of what is read, and of whatever a cut-short prompt left unsealed."""
    if use.reader is not None:
        use.reader.close()
    if use.windows is not None:
        use.windows.abort()


def _sealing(use: PoolUse, windows: Windows, blocks: tuple[int, int]) -> Callable[[Any], None]:
    """Has `Storing` seal blocks [a, b) of a prompt."""

    def seal(_: Any) -> None:
        sealed = windows.writer.seal(blocks)
        use.published_blocks += len(sealed) - sealed.count("EXISTED")

    return seal


def _completed(reserved: int, chain: Chain, chunk: Chunk) -> tuple[int, int]:
    """Blocks [a, b) of the prompt's chain, from `reserved` on, that the chunk completes."""
    if chunk.start >= chain.token_count:  # the reply's, which complete no block of the prompt
        return len(chain), len(chain)
    size = chain.block_tokens
    first = chunk.start // size
    last = len(chain) if chunk.end >= chain.token_count else chunk.end // size
    first = max(first, reserved)
    return first, max(first, last)
