"""Where SGLang says what is before a page the beginning of a conversation stays as long as its end:
no server asks for it, since each has it itself, and without it the rest is found no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.sglang.engine import PAGES, Engine, mha_pool
from tests.nodes import NodeProcess, running

TURNS, OTHERS = 24, 40  # pages that come in a turn each, and those of others between two


@pytest.fixture
def small() -> Iterator[NodeProcess]:
    with running(dram="4MiB", slab="1MiB") as node:
        yield node


def left(node: NodeProcess, linked: bool) -> list[bool]:
    """Which of a conversation's pages are there behind its last turn."""
    engine = Engine(mha_pool("page_first"), moonpool=node.address)
    try:
        told: list[str] = []
        for turn in range(TURNS):
            assert engine.store([f"turn {turn}"], 0, before=[*told] if linked else None) == [True]
            told.append(f"turn {turn}")
            for first in range(0, OTHERS, PAGES):
                pages = range(min(PAGES, OTHERS - first))
                others = [f"other {turn} {first + page}" for page in pages]
                engine.store(others, *pages, before=[] if linked else None)
        return [engine.storage.exists(key) for key in told]
    finally:
        engine.storage.close()


def test_the_beginning_of_a_conversation_stays_while_its_end_is_there(small: NodeProcess) -> None:
    assert all(left(small, linked=True))


def test_pages_of_which_nothing_is_said_go_by_their_age(small: NodeProcess) -> None:
    found = left(small, linked=False)
    assert not found[0] and found[-1]


def test_a_page_is_found_whatever_became_of_what_is_before_it(small: NodeProcess) -> None:
    """The server has that itself, and asks for what it has not."""
    engine = Engine(mha_pool("page_first"), moonpool=small.address)
    assert engine.store(["second", "third"], 0, 1, before=["first"]) == [True, True]
    assert engine.load(["second", "third"], 0, 1) == [True, True]
    engine.storage.close()
