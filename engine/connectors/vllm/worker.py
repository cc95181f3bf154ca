"""The worker side: one rank's pages, loaded from the pool and published to it."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import Any

from kvstore.client import Client, KVStoreError

from .beside import beside
from .caches import GroupCache
from .compare import NOTHING, compare, together
from .facts import Facts
from .health import Health
from .loaded_adapters import LOADED
from .loads import Loads
from .messages import Compare, Part, Ready, Report, Step, Verdict
from .moment import Moment
from .saves import Saves
from .settings import Settings
from .trace import Trace

log = logging.getLogger("vllm.moonpool")

NOTHING_SAID = Report()
IDLE_SECONDS = 0.002  # a step that computed nothing waits so long for a load to end


class WorkerSide:
    """One rank. Used by vLLM's worker thread only."""

    def __init__(
        self,
        settings: Settings,
        facts: Facts,
        tensors: dict[str, Any],
        engine: str,
        rank: int,
        ranks: int,
    ) -> None:
        self._device = next(iter(tensors.values())).device
        root = Client(
            settings.locator,
            facts.spec,
            label=f"vllm-worker-{rank}",
            deadline_seconds=settings.deadline_ms / 1e3,
            # HBM that a node lends is of one GPU: what several need would go down for the others.
            device=self._device if ranks == 1 else None,
        )
        self._client, self._facts = root, facts
        self._caches = tuple(
            GroupCache(root.of_group(index), one, [tensors[name] for name in one.layer_names])
            for index, one in enumerate(facts.groups)
        )
        self._health, self._trace = Health(settings.node, root), Trace(settings.trace)
        self._loads = Loads(
            *(self._caches, settings.loads_max, settings.stall_ms / 1e3),
            *(self._health, self._trace, beside(self._device)),
        )
        wait = settings.save_ms / 1e3
        self._saves = Saves(self._caches, engine, facts.origin, wait, self._health, self._trace)
        self._saves.connect()
        # A page is one request's where vLLM has one group, and that no window: of what is before a
        # window all have page 0, and vLLM would compute others anew for it, into that page.
        self._by_page = facts.vllm_groups == 1 and not any(
            one.window_tokens for one in facts.groups
        )
        self._step = Step(0)
        # What is to be said next. With speculation vLLM may ask before it has a step saved: then
        # what that says is said with the next step's.
        self._report = Report()
        self._began: Moment | None = None  # the step, where it computes prompts
        # Steps that compute prompts: tokens of each, and when it began and ended on the device.
        self._prefills: deque[tuple[int, Moment, Moment]] = deque()
        self._computed = False
        self._adapters_told = LOADED.loads

    def ready(self, policy: str) -> Ready:
        groups = self._facts.groups
        return Ready(
            self._facts.spec.canonical(),
            self._facts.origin,
            tuple(one.page_tokens for one in groups),
            tuple(one.vllm_group for one in groups),
            tuple(one.window_tokens for one in groups),
            policy,
        )

    def tell(self, ready: Ready) -> None:
        """Say it with the first step."""
        self._report.ready = (ready,)

    def begin(self, step: Step) -> None:
        self._step, self._computed = step, False
        self._began = Moment(self._device) if step.prefills else None
        # vLLM has loaded the adapters of this step by now.
        self._report.adapters += LOADED.since(self._adapters_told)
        self._adapters_told = LOADED.loads
        # The scheduler named these by weights that may not be the adapter's any more.
        saves = [one for one in step.saves if LOADED.has(one.adapter)]
        self._saves.begin(step if len(saves) == len(step.saves) else replace(step, saves=saves))

    def load(self) -> None:
        for load in self._step.loads:
            self._loads.start(load)

    def layer(self, name: str) -> None:
        """A layer of this step has been computed."""
        self._computed = True
        self._saves.layer(name)

    def save(self) -> None:
        """All of them have. What is compared is compared first: it may not be what is stored."""
        step, report = self._step, self._report
        if self._computed and self._began is not None:
            self._prefills.append((step.tokens, self._began, Moment(self._device)))
        while self._prefills and self._prefills[0][2].past:
            tokens, began, ended = self._prefills.popleft()
            report.prefill = (tokens, ended.seconds_after(began))
        for one in step.compares:
            report.verdicts[one.request] = self._compare(one)
        saved, late = self._saves.end()
        report.saved_blocks += saved
        report.late |= late

    def ended(self) -> tuple[set[str], set[str], set[str]]:
        """Requests whose last blocks are stored, that are loaded, and whose load failed."""
        sent = {save.request for save in self._step.saves if save.finished}
        loaded = self._loads.finished(0.0 if self._computed else IDLE_SECONDS)
        failed = self._loads.failed()
        if self._by_page:
            failed = set()  # `bad_pages` says of each from where on
        else:
            loaded = {name: one.all_or_nothing() for name, one in loaded.items()}
        self._report.loaded = loaded
        return sent, set(loaded), failed

    def bad_pages(self) -> set[int]:
        """Pages that hold nothing good, where vLLM can be told by page."""
        bad = self._loads.bad_pages()
        return bad if self._by_page else set()

    def report(self) -> Report | None:
        report = self._report
        if report == NOTHING_SAID:
            return None
        self._report = Report()
        return report

    def drain(self) -> None:
        """Nobody writes to vLLM's pages when this returns."""
        self._loads.drain()

    def close(self) -> None:
        self._loads.close()
        self._saves.close()
        self._client.close()
        self._trace.close()

    def _compare(self, asked: Compare) -> Verdict:
        if not LOADED.has(asked.adapter):
            return NOTHING
        return together(asked.parts, [self._compared(part) for part in asked.parts])

    def _compared(self, part: Part) -> Verdict:
        try:
            return compare(self._caches[part.group], part)
        except KVStoreError as error:
            self._health.failed(error)
        except Exception:
            # Whatever it is, as where a GPU has no room left: vLLM's worker would end by it.
            log.exception("Moonpool: stored blocks could not be compared, unexpectedly")
        return NOTHING
