"""Whose blocks a hit would load: of every group, those of its window too, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, Keyed, KVGroup, KVSpec
from kvstore.engine.connectors.vllm.contents import Contents
from kvstore.engine.connectors.vllm.media import Media
from kvstore.engine.connectors.vllm.messages import Compare, Ready, Report, Verdict
from kvstore.engine.connectors.vllm.scheduler import SchedulerSide
from kvstore.engine.connectors.vllm.settings import Settings
from kvstore.engine.connectors.vllm.trust import Verb
from tests.connectors.vllm.test_scheduler import request
from tests.nodes import NodeProcess

OURS, NEW = 1, 2  # origins
SIZE, WINDOW = 16, 20  # tokens; at a block's end the window is of that block and the one before
TOKENS = list(range(4 * SIZE + 8))
SOON = 30.0


class Engine:
    """The scheduler's half of an engine whose groups have these windows, and what a node has."""

    def __init__(self, node: NodeProcess, *windows: int) -> None:
        facts: dict[str, Any] = {"kv_heads": 1, "head_dim": 8, "block_tokens": SIZE}
        made = [
            KVGroup((index,), reuse="window" if one else "chain", window_tokens=one, **facts)
            for index, one in enumerate(windows)
        ]
        spec = KVSpec(model="m", revision="r", dtype="float32", groups=tuple(made))
        self.root = Client.at(node.address, spec)
        told = {"node": node.address, "reuse": "always", "audit_rate": 0.0}
        said = Settings.of({**told, "self_test_hits": 1})
        whole: Any = {"reads": True, "writes": True, "goes_on": True, "place": None}
        self.here = SchedulerSide(said, SIZE, **whole, contents=Contents(Media("")))
        groups = tuple(range(len(windows)))
        kept = (len(windows) * (SIZE,), groups, windows)
        one = Ready(spec.canonical(), OURS, *kept, policy="recompute")
        self.here.ready({(0, 0): one})
        self.trust = self.here._audits._trust

    def stores(self, group: int, origin: int, first: int = 0, last: int = 4) -> None:
        """Blocks [first, last) of the prompt, in one group."""
        client = self.root.of_group(group)
        blocks = Keyed(client.chain(TOKENS[: 4 * SIZE]).hashes[first:last], SIZE)
        pages = [np.ones((last - first, 1, SIZE, 2, 8), np.float32)]
        with client.writer(blocks, origin=origin) as writer:
            writer.put(client.memory(pages, "phtkd", list(range(last - first))))
            writer.seal()

    def asks(self, name: str, computed: int = 0) -> tuple[int, Verb | None]:
        """Tokens that a request of that prompt is offered, and why so many."""
        self.one = request(name)
        self.one.all_token_ids = TOKENS
        self.one.num_tokens = self.one.num_prompt_tokens = len(TOKENS)
        self.one.num_preemptions = self.one.num_output_tokens = 0
        self.one.num_computed_tokens = computed
        self.here.arrived(self.one)
        assert self.here._answers[name].result(SOON) is not None
        tokens, _ = self.here.matched(self.one, computed)
        assert tokens is not None
        return tokens, self.here._here.tracked[name].verb

    def computes(self, tokens: int) -> list[Compare]:
        """What a step that computes so many tokens of the last request compares."""
        pages = tuple([*range(1, 6)] for _ in self.here._clients)
        if not self.here._here.tracked[self.one.request_id].ran:
            self.here.allocated(self.one, pages, 0)
        step: Any = SimpleNamespace(
            total_num_scheduled_tokens=tokens,
            num_scheduled_tokens={self.one.request_id: tokens},
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: pages),
        )
        made = self.here.step(step)
        self.one.num_computed_tokens += tokens
        return made.compares

    def close(self) -> None:
        self.here.close()
        self.root.close()


@pytest.fixture
def hybrid(node: NodeProcess) -> Iterator[Engine]:
    made = Engine(node, 0, WINDOW)
    yield made
    made.close()


@pytest.fixture
def windows(node: NodeProcess) -> Iterator[Engine]:
    made = Engine(node, WINDOW)
    yield made
    made.close()


def test_where_every_group_sees_a_window_a_new_origin_is_tested_too(windows: Engine) -> None:
    windows.stores(0, NEW)
    assert windows.asks("a") == (0, Verb.TEST)


def test_windows_of_a_new_origin_are_tested_though_the_chain_s_is_known(hybrid: Engine) -> None:
    hybrid.trust.agreed([OURS])
    hybrid.stores(0, OURS)
    hybrid.stores(1, NEW)
    assert hybrid.asks("a") == (0, Verb.TEST)


def test_windows_of_an_origin_that_is_known_to_be_wrong_are_refused(hybrid: Engine) -> None:
    hybrid.trust.agreed([OURS])
    hybrid.trust.differed([NEW], "misread", random=False)
    hybrid.stores(0, OURS)
    hybrid.stores(1, NEW)
    assert hybrid.asks("a") == (0, Verb.REFUSE)


def test_what_stands_before_the_window_is_not_loaded_so_anybody_may_have_computed_it(
    hybrid: Engine,
) -> None:
    hybrid.trust.agreed([OURS])
    hybrid.stores(0, OURS)
    hybrid.stores(1, NEW, 0, 2)
    hybrid.stores(1, OURS, 2, 4)
    assert hybrid.asks("a") == (4 * SIZE, Verb.LOAD)


def test_what_vllm_has_itself_is_not_loaded_either(hybrid: Engine) -> None:
    hybrid.trust.agreed([OURS])
    for group in (0, 1):
        hybrid.stores(group, NEW, 0, 3)
        hybrid.stores(group, OURS, 3, 4)
    assert hybrid.asks("a", computed=3 * SIZE) == (SIZE, Verb.LOAD)
    assert hybrid.asks("b") == (0, Verb.TEST)


def test_of_a_tested_hit_what_would_be_loaded_is_compared_and_nothing_else(hybrid: Engine) -> None:
    """Blocks before the window may be of others, who are not to be blamed for these."""
    hybrid.stores(0, OURS)
    hybrid.stores(1, NEW)
    assert hybrid.asks("a") == (0, Verb.TEST)
    for tokens, compared in (
        (3 * SIZE, [(0, 0, 3), (1, 2, 1)]),
        (SIZE + 8, [(0, 3, 1), (1, 3, 1)]),
    ):
        [one] = hybrid.computes(tokens)
        assert [(part.group, part.first, len(part.hashes)) for part in one.parts] == compared


def test_where_every_group_sees_a_window_a_prompt_that_comes_in_parts_is_compared_in_the_last(
    windows: Engine,
) -> None:
    """Of what stands before the window nothing would be loaded."""
    windows.stores(0, NEW)
    assert windows.asks("a") == (0, Verb.TEST)
    assert windows.computes(SIZE) == windows.computes(SIZE) == []
    [one] = windows.computes(2 * SIZE + 8)
    assert [(part.first, len(part.hashes)) for part in one.parts] == [(2, 2)]
    windows.here.heard(Report(verdicts={"a": Verdict(2, 1.0, 0.0, "")}), set())
    assert windows.asks("b") == (4 * SIZE, Verb.LOAD)


@pytest.mark.parametrize("compared", [(2, 2), (0, 2), (2, 0)])
def test_who_was_compared_in_every_step_is_trusted_and_nobody_else(
    hybrid: Engine, compared: tuple[int, int]
) -> None:
    hybrid.stores(0, OURS)
    hybrid.stores(1, NEW)
    assert hybrid.asks("a") == (0, Verb.TEST)
    for tokens, blocks in zip((3 * SIZE, SIZE + 8), compared, strict=True):
        assert hybrid.computes(tokens)
        hybrid.here.heard(Report(verdicts={"a": Verdict(blocks, 1.0, 0.0, "")}), set())
    assert hybrid.asks("b")[1] is (Verb.LOAD if all(compared) else Verb.TEST)
