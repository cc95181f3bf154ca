"""The worker side: one rank's pages, loaded from the pool and published to it."""

from __future__ import annotations

import os
from typing import Any

from kvstore.client import Client

from .caches import GroupCache
from .facts import Facts
from .loads import Loads
from .messages import Ready, Report, Step
from .saves import Saves
from .settings import Settings

IDLE_SECONDS = 0.002  # a step that computed nothing waits so long for a load to end


class WorkerSide:
    """One rank. Used by vLLM's worker thread only."""

    def __init__(
        self, settings: Settings, facts: Facts, tensors: dict[str, Any], engine: str, rank: int
    ) -> None:
        root = Client(
            settings.locator,
            facts.spec,
            label=f"vllm-worker-{rank}",
            deadline_seconds=settings.deadline_ms / 1e3,
        )
        self._client, self._facts = root, facts
        caches = tuple(
            GroupCache(root.of_group(index), one, [tensors[name] for name in one.layer_names])
            for index, one in enumerate(facts.groups)
        )
        self._loads = Loads(caches, settings.loads_max, settings.stall_ms / 1e3)
        self._saves = Saves(caches, f"{engine}/{os.getppid()}")
        self._several = len(facts.groups) > 1
        self._step = Step(0)
        self._computed = False
        self._loaded: dict[str, int] = {}

    def ready(self) -> Ready:
        groups = self._facts.groups
        return Ready(
            self._facts.spec.canonical(),
            tuple(one.page_tokens for one in groups),
            tuple(one.vllm_group for one in groups),
            tuple(one.window_tokens for one in groups),
        )

    def begin(self, step: Step) -> None:
        self._step, self._computed = step, False
        self._saves.begin(step)

    def load(self) -> None:
        for load in self._step.loads:
            self._loads.start(load)

    def computed(self) -> None:
        """A layer of this step was computed, so the step is not an empty one."""
        self._computed = True

    def save(self) -> None:
        self._saves.end()

    def ended(self) -> tuple[set[str], set[str], set[str]]:
        """Requests whose last blocks are stored, that are loaded, and whose load failed."""
        sent = {save.request for save in self._step.saves if save.finished}
        self._loaded = self._loads.finished(0.0 if self._computed else IDLE_SECONDS)
        failed = self._loads.failed() if self._several else set()
        return sent, set(self._loaded), failed

    def bad_pages(self) -> set[int]:
        """Pages that hold nothing good. vLLM can be told by page where there is one group only."""
        bad = self._loads.bad_pages()
        return set() if self._several else bad

    def report(self) -> Report | None:
        loaded, self._loaded = self._loaded, {}
        return Report(loaded) if loaded else None

    def close(self) -> None:
        self._loads.close()
        self._saves.close()
        self._client.close()
