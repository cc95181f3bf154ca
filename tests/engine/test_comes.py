"""Prompts that begin alike on a real pool: the second waits for what the first stores there, and
for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.device import CPU
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Request
from kvstore.engine.storing import AtOnce, Put, Storing
from kvstore.errors import KVStoreError
from tests.engine.asks import SECONDS, check
from tests.engine.runs import prompt

SHARED, STEP = 640, 512  # tokens that two begin with; of a step


class AsLateAsMayBe(AtOnce):
    """What stores beside the steps, and gets to nothing before somebody waits for it."""

    def __init__(self, place: torch.device) -> None:
        super().__init__(place)
        self._before: list[tuple[str, Put]] = []
        self._under_way: list[tuple[str, Put]] = []
        self.settled = 0

    def store(self, request_id: str, put: Put) -> None:
        self._under_way.append((request_id, put))

    @property
    def idle(self) -> bool:
        return not (self._before or self._under_way)

    def stepped(self) -> None:
        before, self._before, self._under_way = self._before, self._under_way, []
        for one in before:
            super().store(*one)

    def settle(self) -> dict[str, KVStoreError]:
        self.settled += 1
        for _ in (self._before, self._under_way):
            self.stepped()
        return super().settle()


@pytest.mark.parametrize("storing", [AtOnce, AsLateAsMayBe])
@pytest.mark.parametrize(
    ("hand_offs", "computed"), [(None, 8), ((), 648)], ids=["stores", "follows a prefill"]
)
def test_one_waits_for_what_another_stores_as_it_computes_and_not_for_one_that_follows(
    node: Stack,
    model: Model,
    model_dir: Path,
    hand_offs: tuple[bytes, ...] | None,
    computed: int,
    storing: Callable[[torch.device], Storing],
) -> None:
    """Who follows a prefill and finds nothing of it computes it, and stores that at its end."""
    where = InDirectory(node.children["node"].log.parent)
    with Client(where, spec_of(model_dir), deadline_seconds=SECONDS) as client:
        core = EngineCore(model, EngineSettings(pages=64, max_batch_tokens=STEP, max_running=8))
        pool = Pool(client, core.cache, device=replace(CPU, storing=storing))
        core.hooks = pool
        # What another way to store left there is of no help.
        shared = prompt(SHARED, seed=computed + 1_000 * (storing is AtOnce))
        for name, given in (("first", hand_offs), ("second", None)):
            tokens = (*shared, *prompt(8, seed=len(name)))
            asked = Request(name, tokens, 4, ignore_eos=True, follows=given is not None)
            core.add(asked)
            pool.expect(name, PoolUse(hand_offs=given))
        core.step()  # all of it is the first one's
        core.step()
        begun = set(core.scheduler.running)
        assert begun == ({"first"} if hand_offs is None else {"first", "second"})
        second = next(
            one
            for one in [*core.scheduler.running.values(), *core.scheduler.waiting]
            if one.id == "second"
        )
        while not core.idle:
            core.step()
        assert second.prompt_len - second.cached_tokens == computed
    check(node)


def test_none_waits_for_what_another_stores_behind_where_they_part(
    node: Stack, model: Model, model_dir: Path
) -> None:
    """All begin alike, as with one system prompt, and that is in the pool."""
    late = AsLateAsMayBe(torch.device("cpu"))
    where = InDirectory(node.children["node"].log.parent)
    with Client(where, spec_of(model_dir), deadline_seconds=SECONDS) as client:
        core = EngineCore(model, EngineSettings(pages=96, max_batch_tokens=STEP, max_running=8))
        pool = Pool(client, core.cache, device=replace(CPU, storing=lambda _: late))
        core.hooks = pool
        system = prompt(SHARED, seed=77)

        def ask(name: str, tokens: int) -> None:
            own = prompt(tokens, seed=100 + len(name))
            core.add(Request(name, (*system, *own), 4, ignore_eos=True))
            pool.expect(name, PoolUse())

        ask("one", 8)
        while not core.idle:
            core.step()
        ask("second", SHARED)
        ask("another", 8)
        core.step()  # all of it is the second one's
        waited = late.settled
        core.step()
        assert set(core.scheduler.running) == {"second", "another"}
        assert late.settled == waited and not late.idle
        while not core.idle:
            core.step()
    check(node)
