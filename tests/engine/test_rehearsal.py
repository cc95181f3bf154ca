"""An engine finds out what its steps cost, and is afterwards as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory
from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.engine import rehearsal
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.follower import follow
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.orders import END
from kvstore.engine.pool import Pool
from kvstore.engine.reference import Reference
from kvstore.engine.rehearsal import FIRST, TOGETHER, Costs, Rehearsal
from kvstore.engine.worker import Worker
from kvstore.errors import ConfigError
from tests.engine.asks import NEW, ask
from tests.engine.runs import prompt
from tests.engine.teams import each, teams

PAGES = 16
SETTINGS = EngineSettings(pages=PAGES, max_batch_tokens=256)


@pytest.fixture
def client(node: Stack, model_dir: Path) -> Iterator[Callable[[], Client]]:
    made: list[Client] = []
    where, spec = InDirectory(node.children["node"].log.parent), spec_of(model_dir)

    def open_one() -> Client:
        made.append(Client(where, spec, deadline_seconds=20.0))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def positive(costs: Costs) -> bool:
    prefill, decode = costs.prefill, costs.decode
    return min(prefill.a, prefill.b, prefill.c, decode.a, decode.b, decode.c) > 0


def test_prompts_grow_to_what_there_is_room_for_and_leave_pages_and_pool_as_they_were(
    model: Model,
    client: Callable[[], Client],
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rehearsal, "SECONDS", 1e9)
    core, reader = EngineCore(model, SETTINGS), client()
    pool = Pool(reader, core.cache)
    stage = Rehearsal(core, pool)
    assert positive(stage.run())
    assert list(stage.heard.prefills) == [(FIRST << power, 0) for power in range(6)]
    assert {batch for batch, _ in stage.heard.steps} == {1, TOGETHER}
    assert core.idle and core.cache.allocator.free == PAGES
    longest = range(1, (FIRST << 5) + 1)
    assert reader.match(reader.chain(longest)).blocks == 0, "made-up tokens are in the pool"
    worker, tokens = Worker(core, pool), prompt(300, seed=9)
    worker.start()
    try:
        assert ask(worker, "a", tokens).finish() == reference.tokens(tokens, NEW)
    finally:
        worker.stop(5.0)


def test_no_prompt_is_run_that_is_thought_to_take_too_long(
    model: Model, client: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    core = EngineCore(model, SETTINGS)
    stage = Rehearsal(core, Pool(client(), core.cache))
    assert positive(stage.run())
    assert list(stage.heard.prefills) == [(FIRST, 0)]
    assert {batch for batch, _ in stage.heard.steps} == {1}


def test_all_ranks_take_part(
    model_dir: Path, client: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    members = teams(2)
    cores = [EngineCore.load(model_dir, SETTINGS, team=one) for one in members]
    pools = [Pool(client(), core.cache, team) for core, team in zip(cores, members, strict=True)]

    def lead() -> Costs:
        found = Rehearsal(cores[0], pools[0], members[0]).run()
        members[0].tell(END)
        return found

    costs, _ = each([lead, lambda: follow(cores[1], pools[1], members[1])])
    assert positive(costs)
    assert [core.cache.allocator.free for core in cores] == [PAGES, PAGES] and cores[1].idle


def test_costs_are_told_as_a_prompt_and_a_step_of_a_thousand_tokens() -> None:
    costs = Costs(PrefillCost(0.01, 1e-4, 1e-8), DecodeCost(0.01, 1e-3, 1e-6))
    assert str(costs) == "1,000 tokens prefill in 120 ms, and decode by 12 ms"


def test_too_few_pages_are_refused(model: Model, client: Callable[[], Client]) -> None:
    core = EngineCore(model, EngineSettings(pages=1, page_tokens=16))
    with pytest.raises(ConfigError, match="16 tokens are no room to serve: give more --pages"):
        Rehearsal(core, Pool(client(), core.cache)).run()
