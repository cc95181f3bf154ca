"""Publishing: the blocks a step completes are reserved while it computes, stored after it, sealed.

The move itself is made by vLLM's own thread once the step's KV is written, before any of its pages
can change hands. The calls to the node are made by a thread beside it; a node that does not answer
in time costs the step those blocks and nothing else.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from kvstore.client import Chain, Keyed, KVStoreError, Writer

from .caches import GroupCache
from .messages import Part, Save, Step

log = logging.getLogger("vllm.moonpool")

WAIT_SECONDS = 0.02  # for reservations, after the step has been computed


class Saves:
    """The blocks one rank publishes."""

    def __init__(self, caches: tuple[GroupCache, ...], engine: str) -> None:
        self._caches, self._engine = caches, engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-save")
        self._step: Future[list[tuple[Writer, GroupCache, Part]]] | None = None

    def begin(self, step: Step) -> None:
        """Reserve what the step will complete."""
        if step.saves:
            self._step = self._thread.submit(self._reserve, step)

    def end(self) -> None:
        """Store it: its KV is written now."""
        reserved, self._step = self._step, None
        if reserved is None:
            return
        try:
            windows = reserved.result(WAIT_SECONDS)
        except TimeoutError:
            reserved.add_done_callback(_give_up)
            return
        stored = []
        for writer, cache, part in windows:
            try:
                writer.put(cache.memory(part.pages))
                stored.append(writer)
            except KVStoreError as error:
                writer.abort()
                log.warning("Moonpool: blocks were not published: %s", error)
        if stored:
            self._thread.submit(_seal, stored)

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _reserve(self, step: Step) -> list[tuple[Writer, GroupCache, Part]]:
        windows: list[tuple[Writer, GroupCache, Part]] = []
        for save in step.saves:
            try:
                windows += self._windows(step, save)
            except KVStoreError as error:
                log.warning("Moonpool: blocks are not published: %s", error)
                break
        return windows

    def _windows(self, step: Step, save: Save) -> list[tuple[Writer, GroupCache, Part]]:
        windows = []
        for part in save.parts:
            cache = self._caches[part.group]
            if not cache.facts.writes:
                continue
            size = cache.client.space.layout.block_tokens
            blocks: Chain | Keyed
            if cache.facts.window_tokens:
                part = _present(part, size // cache.facts.page_tokens)
                blocks, first = Keyed(part.hashes, size), 0
            else:
                before = (part.parent,) * part.first
                blocks = Chain(
                    before + part.hashes, (size,) * (part.first + len(part.hashes)), size
                )
                first = part.first
            if not part.hashes:
                continue
            writer = cache.client.writer(
                blocks,
                first=first,
                fragment=cache.fragment,
                writer_group=f"{self._engine}/{step.number}/{save.request}",
            )
            windows.append((writer, cache, part))
        return windows


def _present(part: Part, per_block: int) -> Part:
    """The blocks of a window group whose pages vLLM still has, with those pages alone."""
    hashes: list[bytes] = []
    pages: list[int] = []
    for index, one in enumerate(part.hashes):
        first = (part.first + index) * per_block
        held = part.pages[first : first + per_block]
        if len(held) == per_block and all(held):  # page 0 stands for one that was given up
            hashes.append(one)
            pages.extend(held)
    return Part(part.group, 0, tuple(hashes), b"", tuple(pages))


def _seal(writers: list[Writer]) -> None:
    for writer in writers:
        try:
            writer.seal()
        except KVStoreError as error:
            log.warning("Moonpool: blocks were not published: %s", error)
            writer.abort()


def _give_up(reserved: Future[list[tuple[Writer, GroupCache, Part]]]) -> None:
    for writer, _, _ in reserved.result():
        writer.abort()
