"""Publishing: the blocks a step completes are reserved while it computes, stored after it, sealed.

The move itself is made by vLLM's own thread once the step's KV is written, before any of its pages
can change hands. The calls to the node are made by a thread beside it; a node that does not answer
in time costs the step those blocks and nothing else. What a reader follows is stored layer by layer
as the step computes it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kvstore.client import (
    Chain,
    Fragment,
    Keyed,
    KVStoreError,
    Overloaded,
    SessionEnded,
    Unavailable,
    Writer,
)
from kvstore.client.later import later

from .caches import GroupCache
from .health import Health
from .messages import Part, Save, Step
from .trace import Trace

log = logging.getLogger("vllm.moonpool")

OVER_MAX = 4_096
HAND_OFF_SECONDS = 0.2  # for those that a reader waits for, before the first layer is stored
NOBODYS = (Overloaded, SessionEnded, Unavailable)  # others would hear the same


@dataclass(slots=True)
class Window:
    """A writer, and where its blocks lie."""

    writer: Writer
    cache: GroupCache
    pages: tuple[int, ...]
    save: Save | None = None  # whose hand-off it is
    layers: int = 0  # stored so far
    failed: bool = False  # to store: it is given up


class Saves:
    """The blocks one rank publishes."""

    def __init__(
        self,
        caches: tuple[GroupCache, ...],
        engine: str,
        origin: int,
        wait_seconds: float,
        health: Health,
        trace: Trace,
    ) -> None:
        self._caches, self._engine, self._origin = caches, engine, origin
        self._wait_seconds = wait_seconds  # for reservations, once a step has been computed
        self._health, self._trace = health, trace
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-save")
        self._step = Step(0)
        self._reserving: Future[list[Window]] | None = None
        self._late: Future[list[Window]] | None = None  # one that a step did not wait for
        self._over = deque[str](maxlen=OVER_MAX)  # hand-offs whose followers are to be told
        self._followed: list[Window] | None = None  # once a layer of the step has been computed
        self._layers = {
            name: (index, layer)
            for index, cache in enumerate(caches)
            for layer, name in enumerate(cache.facts.layer_names)
        }

    def connect(self) -> None:
        """Begin the session beside vLLM's own start, so that no request waits for it."""
        later(self._thread, self._connect)

    def begin(self, step: Step) -> None:
        """Reserve what the step will complete."""
        self._followed, self._step = None, step
        # A node that has not answered for an earlier step is not waited for again.
        if step.saves and (self._late is None or self._late.done()):
            self._late = None
            self._reserving = later(self._thread, lambda: self._reserve(step))
            if not any(save.hand_off for save in step.saves):
                self._followed = []
        # A rank that writes nothing of them does not know when the others have reserved the last.
        if step.over and any(cache.facts.writes for cache in self._caches):
            self._over.extend(step.over)
            later(self._thread, self._forgo)  # and so behind the last of their reservations

    def layer(self, name: str) -> None:
        """A layer is computed: store it where a reader follows."""
        if self._reserving is None or self._followed == []:
            return
        if self._followed is None:
            try:
                windows = self._reserving.result(HAND_OFF_SECONDS)
            except TimeoutError:
                windows = []
            self._followed = [one for one in windows if one.save is not None]
        found = self._layers.get(name)
        for window in list(self._followed):
            save = window.save
            if found is None or save is None or self._caches[found[0]] is not window.cache:
                continue
            # Each once, in order: a draft's second pass is not it.
            if found[1] == window.layers and not window.failed:
                held = window.cache.fragment
                part = Fragment(window.layers, 1, held.head_first, held.heads)
                if self._put(window, part):
                    window.layers += 1
                    self._trace.event(
                        "stored",
                        save.request,
                        layers=window.layers,
                        name=save.hand_off,
                    )

    def end(self) -> tuple[int, dict[str, int]]:
        """Store the rest: the step's KV is written now.

        Returns how many blocks there were, and of requests whose blocks had to wait the first one.
        """
        reserving, self._reserving = self._reserving, None
        late = {one.request: one.parts[0].first for one in self._step.saves if not one.finished}
        if reserving is None:
            return 0, late
        try:
            windows = reserving.result(self._wait_seconds)
        except TimeoutError:
            reserving.add_done_callback(_give_up)
            self._late = reserving
            return 0, late
        stored = []
        for window in windows:
            if window.failed:
                continue
            held = window.cache.fragment
            left = Fragment(window.layers, held.layers - window.layers, held.head_first, held.heads)
            if not left.layers or self._put(window, left):
                stored.append(window)
        if stored:
            self._thread.submit(self._seal, stored)  # it has a thread, by which it was reserved
        return sum(
            int(one.writer.granted.sum()) for one in stored if one.cache is self._caches[0]
        ), {}

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _connect(self) -> None:
        try:
            self._caches[0].client.register()
        except KVStoreError as error:
            self._health.failed(error)

    def _forgo(self) -> None:
        """Nobody is to wait any more for hand-offs that are over. Who is not told waits for as long
        as it may."""
        try:
            while self._over:
                name = self._over.popleft()
                self._caches[0].client.forgo(name)
        except KVStoreError as error:
            if isinstance(error, NOBODYS):
                self._over.append(name)  # until the next of them is over
            self._health.failed(error)
        except Exception:
            log.exception("Moonpool: followers were not told of the end, for an unexpected reason")

    def _put(self, window: Window, part: Fragment) -> bool:
        try:
            window.writer.put(window.cache.memory(window.pages), part)
        except Exception as error:
            self._fail(window, error)
            return False
        return True

    def _fail(self, window: Window, error: Exception) -> None:
        """Whatever it is: vLLM's worker would end by it, and of a thread's nobody would hear."""
        if isinstance(error, KVStoreError):
            self._health.failed(error)
        else:
            log.error("Moonpool: blocks could not be stored, unexpectedly", exc_info=error)
        window.failed = True
        window.writer.abort()

    def _reserve(self, step: Step) -> list[Window]:
        """One window a group for all that is stored at the step's end, one each for a hand-off."""
        windows: list[Window] = []
        plain = [save for save in step.saves if not save.hand_off]
        asked = [self._followed_windows(save) for save in step.saves if save.hand_off]
        for index, cache in enumerate(self._caches):
            if cache.facts.writes and plain:
                asked.append(self._window(step, cache, [save.parts[index] for save in plain]))
        well = True
        for some in asked:  # each asks as it is gone through: what one is refused is its own
            try:
                windows.extend(some)
            except KVStoreError as error:
                self._health.failed(error)
                well = False
                if isinstance(error, NOBODYS):
                    break
            except Exception:
                # Whatever it is, vLLM's worker takes the answer, and would end by what it raised.
                log.exception("Moonpool: blocks could not be reserved, for an unexpected reason")
                well = False
        if well:
            self._health.well()
        return windows

    def _window(self, step: Step, cache: GroupCache, parts: list[Part]) -> Iterator[Window]:
        """Blocks of several requests, whose pages are written one after another."""
        size, per_page = cache.client.space.layout.block_tokens, cache.facts.page_tokens
        blocks, pages = gathered(parts, size, per_page, bool(cache.facts.window_tokens))
        if len(blocks):
            # A rank that has all of its blocks writes them alone, and nobody follows these.
            whole = cache.fragment == cache.client.space.layout.whole
            name = "" if whole else f"{self._engine}/{step.number}/{parts[0].group}"
            yield Window(self._writer(cache, blocks, 0, name), cache, pages)

    def _followed_windows(self, save: Save) -> Iterator[Window]:
        for part in save.parts:
            cache = self._caches[part.group]
            if not cache.facts.writes:
                continue
            size = cache.client.space.layout.block_tokens
            if cache.facts.window_tokens:
                blocks, pages = gathered([part], size, cache.facts.page_tokens, window=True)
                if len(blocks):
                    writer = self._writer(cache, blocks, 0, save.hand_off)
                    yield Window(writer, cache, pages, save)
                continue
            tokens = (size,) * (part.first + len(part.hashes) - 1) + (part.last_tokens,)
            chain = Chain((part.parent,) * part.first + part.hashes, tokens, size)
            writer = self._writer(cache, chain, part.first, save.hand_off)
            yield Window(writer, cache, part.pages, save)

    def _writer(self, cache: GroupCache, blocks: Chain | Keyed, first: int, name: str) -> Writer:
        return cache.client.writer(
            blocks,
            first=first,
            fragment=cache.fragment,
            writer_group=name,
            origin=self._origin,
        )

    def _seal(self, windows: list[Window]) -> None:
        for window in windows:
            try:
                window.writer.seal()
            except Exception as error:
                self._fail(window, error)


def gathered(
    parts: list[Part], block_tokens: int, page_tokens: int, window: bool
) -> tuple[Keyed, tuple[int, ...]]:
    """Full blocks of several requests in one group, each once, and their pages, one after another.

    Blocks of a window stand alone, and those whose pages vLLM has given up are left out. A page
    that is larger than a block is named once for each of its blocks.
    """
    parents: dict[bytes, bytes] = {}  # by hash
    pages: list[int] = []
    per_block = block_tokens // page_tokens
    for part in parts:
        for index, one in enumerate(part.hashes):
            first = (part.first + index) * per_block
            held = part.pages[first : first + per_block]
            if len(held) < per_block or (window and not all(held)):  # page 0: given up
                continue
            if index == len(part.hashes) - 1 and part.last_tokens < block_tokens:
                continue  # a short block has a name of its own, though its pages are there
            if one in parents:
                continue  # another request has computed it in this step, or shares it
            parents[one] = part.hashes[index - 1] if index else part.parent
            pages.extend(held)
    before = () if window else tuple(parents.values())
    return Keyed(tuple(parents), block_tokens, before), tuple(pages)


def _give_up(reserving: Future[list[Window]]) -> None:
    for window in reserving.result():
        window.writer.abort()
