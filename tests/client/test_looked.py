"""Blocks are loaded from where they lie; what went meanwhile is opened, and so pinned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Client, Keyed
from tests.client.conftest import Node
from tests.client.kv import spec_of
from tests.client.six_blocks import BLOCKS, SIZE, Stored, said


@pytest.fixture
def stored(own_node: Node) -> Any:
    with Client.at(own_node.directory, spec_of("looked"), deadline_seconds=20.0) as client:
        yield Stored(client)


class Opens:
    """Watches how a client's blocks are opened, and what happens while they are copied."""

    def __init__(self, client: Client, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, bool]] = []  # blocks, and whether they are pinned
        self.meanwhile: Callable[[], object] = list  # once, right after the first copies
        link: Any = client.connection.link()
        load, kv = link.transport.load, link.kv
        open_, copies = kv.Open, itertools.count()

        def opened(request: Any, **rest: Any) -> Any:
            self.asked.append((len(request.hashes), not request.unpinned))
            return open_(request, **rest)

        def loaded(*move: Any) -> Any:
            good = load(*move)
            if next(copies) == 0:
                self.meanwhile()
            return good

        patch.setattr(kv, "Open", opened)
        patch.setattr(link.transport, "load", loaded)


def test_what_lies_still_is_loaded_from_where_it_lies_and_pinned_for_nobody(
    stored: Stored, stats_of: Callable[[Client], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = Opens(stored.client, monkeypatch)
    opens.meanwhile = lambda: pins.append(stats_of(stored.client).pins)
    pins: list[int] = []
    assert stored.loaded() == [True] * BLOCKS
    assert opens.asked == [(BLOCKS, False)] and pins == [0]


def test_what_went_while_it_was_copied_is_opened_again_and_is_a_miss(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = Opens(stored.client, monkeypatch)
    opens.meanwhile = lambda: stored.client.remove(stored.only(1, 4))
    assert stored.loaded() == said(0, 2, 3, 5)
    assert opens.asked == [(BLOCKS, False), (2, True)]


def test_what_changed_hands_while_it_was_copied_is_loaded_from_where_it_lies_now(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stored.client
    others = client.keyed([f"other-{i}" for i in range(BLOCKS)])

    def meanwhile() -> None:
        """What it lay in is another's before it is stored anew."""
        client.remove(stored.only(1, 4))
        client.store_each(others, stored.source.memory(client))
        table = stored.source.memory(client)
        assert client.put(Keyed(stored.blocks.hashes[:2], SIZE), table, first=1) == 1

    opens = Opens(client, monkeypatch)
    opens.meanwhile = meanwhile
    assert stored.loaded() == said(0, 1, 2, 3, 5)
    assert opens.asked == [(BLOCKS, False), (2, True)]


def test_a_block_that_is_missed_at_once_is_not_asked_for_twice(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.client.remove(stored.only(0, 1, 2))
    opens = Opens(stored.client, monkeypatch)
    assert stored.loaded() == said(3, 4, 5)
    assert opens.asked == [(BLOCKS, False)]


def test_over_a_network_blocks_are_pinned_while_they_come(
    own_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"deadline_seconds": 20.0, "transport": "tcp"}
    with Client.at(own_node.directory, spec_of("keyed"), **told) as client:
        stored = Stored(client)
        opens = Opens(client, monkeypatch)
        assert stored.loaded() == [True] * BLOCKS
        assert opens.asked == [(BLOCKS, True)]
