"""The scheduler side: which prefix a request loads, and which blocks a step completes.

It decides on token counts and hashes alone and moves no bytes. Nothing here waits on the pool for
longer than `lookup_ms`, and nothing the pool does or fails to do raises into vLLM.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from kvstore.client import Client, KVSpec

from .keys import left_out
from .lookup import Found, Lookup, Lookups
from .messages import Load, Part, Ready, Report, Save, Step
from .settings import Settings
from .tracked import Tracked
from .usable import usable_tokens, window_start

log = logging.getLogger("vllm.moonpool")


class SchedulerSide:
    """One vLLM engine's view of the pool. Used by vLLM's scheduler thread only."""

    def __init__(self, settings: Settings, page_tokens: int, *, reads: bool, writes: bool) -> None:
        self._settings, self._align = settings, page_tokens
        self._reads, self._writes = reads, writes
        self._clients: tuple[Client, ...] = ()
        self._lookups: Lookups | None = None
        self._ready: Ready | None = None
        self._requests: dict[str, Tracked] = {}
        self._answers: dict[str, Lookup] = {}
        self._loads: list[Load] = []
        self._finishing: list[Save] = []
        self._steps = 0
        self._given: set[bytes] = set()  # blocks that this step has given to a worker already
        self._told: set[str] = set()

    # Start and end

    def ready(self, ranks: dict[tuple[int, int], Ready]) -> None:
        """The workers have said what they keep; they must all say the same."""
        first = ranks[min(ranks)]
        for rank, one in ranks.items():
            if one != first:
                raise ValueError(f"rank {rank} has another namespace than rank {min(ranks)}")
        spec = KVSpec.parse(first.spec)
        root = Client(
            self._settings.locator,
            spec,
            label="vllm-scheduler",
            deadline_seconds=self._settings.deadline_ms / 1e3,
        )
        self._ready = first
        self._clients = tuple(root.of_group(index) for index in range(len(spec.groups)))
        self._lookups = Lookups(self._clients, first.windows)
        self._lookups.later(root.register)  # and so the session is there when requests come

    def close(self) -> None:
        if self._lookups is not None:
            self._lookups.close()
            self._clients[0].close()

    # A request's life

    def arrived(self, request: Any) -> None:
        """Ask at once: the answer is usually there when the request comes to be scheduled."""
        why = left_out(request)
        if why:
            self._tell(f"requests with {why} are not kept in the pool")
            return
        if self._lookups is None:
            return
        tracked = self._requests[request.request_id] = Tracked(request, self._clients)
        if self._reads:
            self._ask(tracked)

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Tokens to load beyond the first `computed`, or None while the pool has not answered."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or not self._reads:
            return 0, False
        answer = self._answers.get(tracked.id)
        if answer is None or not answer.fresh:
            answer = self._ask(tracked)
        found = answer.result(self._settings.lookup_ms / 1e3)
        if found is None:
            return None, False
        tracked.published = max(tracked.published, self._held(found))
        tokens = self._usable(found, request.num_tokens)
        return (tokens - computed, True) if tokens > computed else (0, False)

    def allocated(self, request: Any, pages: tuple[list[int], ...], tokens: int) -> None:
        """vLLM has given the request pages; load `tokens` into them, if any."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return
        answer = self._answers.get(tracked.id)
        if tokens == 0:
            if answer is not None and not tracked.loading:
                self._answers.pop(tracked.id).drop()
            return
        assert answer is not None and self._ready is not None
        # What vLLM has computed of it already is what this call's caller told `matched`.
        end = self._usable_end(answer, request.num_tokens)
        begin = end - tokens
        tracked.loading = True
        self._loads.append(Load(tracked.id, begin, end, self._parts(tracked, begin, end, pages)))

    def step(self, output: Any) -> Step:
        """The step's loads, and the blocks whose last token it computes."""
        self._steps += 1
        self._given.clear()
        step = Step(self._steps, self._loads, self._finishing)
        self._loads, self._finishing = [], []
        if self._writes and self._clients:
            for request, scheduled in output.num_scheduled_tokens.items():
                tracked = self._requests.get(request)
                if tracked is None:
                    continue
                one = tracked.request
                done = min(one.num_computed_tokens + scheduled, one.num_tokens)
                pages = partial(output.kv_connector_block_state.get_block_ids, request)
                step.saves += self._completed(tracked, done, pages)
        return step

    def finished(self, request: Any, pages: tuple[list[int], ...]) -> bool:
        """The request is over; whether its pages must be kept until a last block is stored."""
        tracked = self._requests.pop(request.request_id, None)
        answer = self._answers.pop(request.request_id, None)
        if answer is not None:
            answer.drop()
        if tracked is None or not self._writes or tracked.loading:
            return False
        done = min(request.num_computed_tokens, request.num_tokens - 1)
        saves = self._completed(tracked, done, lambda: pages)
        self._finishing += [Save(one.request, one.parts, finished=True) for one in saves]
        return bool(saves)

    def heard(self, report: Report | None, received: set[str]) -> None:
        """What the workers say of loads: blocks that could not be had are published anew."""
        for request in received:
            tracked = self._requests.get(request)
            answer = self._answers.pop(request, None)
            if answer is not None:
                answer.drop()
            if tracked is None:
                continue
            tracked.loading = False
            if report is not None and request in report.loaded:
                size = self._settings.block_tokens
                tracked.published = min(tracked.published, report.loaded[request] // size)

    # Parts

    def _ask(self, tracked: Tracked) -> Lookup:
        assert self._lookups is not None
        before = self._answers.pop(tracked.id, None)
        if before is not None:
            before.drop()
        answer = self._answers[tracked.id] = self._lookups.ask(tracked.chains())
        return answer

    def _held(self, found: Found) -> int:
        """Leading blocks that need not be stored: every group has them."""
        held = found.chain_blocks
        for window in found.windows:
            missing = (~window.present[:held]).nonzero()[0]
            held = int(missing[0]) if len(missing) else held
        return held

    def _usable(self, found: Found, tokens: int) -> int:
        """vLLM computes at least a prompt's last token itself."""
        size = self._settings.block_tokens
        return usable_tokens(found.chain_blocks, found.windows, size, self._align, tokens - 1)

    def _usable_end(self, answer: Lookup, tokens: int) -> int:
        found = answer.result(0)
        assert found is not None, "tokens were promised on an answer"
        return self._usable(found, tokens)

    def _parts(
        self, tracked: Tracked, begin: int, end: int, pages: tuple[list[int], ...]
    ) -> tuple[Part, ...]:
        """The blocks that hold tokens [begin, end), of each group what it needs of them."""
        assert self._ready is not None
        size, parts = self._settings.block_tokens, []
        for group, chain in enumerate(tracked.chains()):
            window = self._ready.windows[group]
            first = max(begin, window_start(end, window)) if window else begin
            some = chain.between(first // size, -(-end // size))
            parts.append(
                Part(
                    group,
                    first // size,
                    some.hashes,
                    chain.parent(first // size),
                    tuple(pages[self._ready.vllm_groups[group]]),
                )
            )
        return tuple(parts)

    def _completed(self, tracked: Tracked, done: int, pages: Any) -> list[Save]:
        """Blocks not yet published that `done` computed tokens fill."""
        blocks = done // self._settings.block_tokens
        if blocks <= tracked.published:
            return []
        first, tracked.published = tracked.published, blocks
        chains, found = tracked.chains(), pages()
        # Prompts that arrive together share their beginnings: one of them stores it.
        while first < blocks and chains[0].hashes[first] in self._given:
            first += 1
        if first == blocks:
            return []
        self._given.update(chains[0].hashes[first:blocks])
        assert self._ready is not None
        parts = []
        for group, chain in enumerate(chains):
            held = tuple(found[self._ready.vllm_groups[group]])
            some = chain.hashes[first:blocks]
            parts.append(Part(group, first, some, chain.parent(first), held))
        return [Save(tracked.id, tuple(parts))]

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("Moonpool: %s", what)
