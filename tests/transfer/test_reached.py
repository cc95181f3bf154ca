"""Which blocks go between HBM and a mapped arena in one copy, and what becomes of the mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvstore.client import Client, Memory
from kvstore.client.space import starts_of
from kvstore.core.spread import Spread
from kvstore.errors import SessionEnded
from kvstore.kernels.pieces import Places, Run
from kvstore.layout import Fragment
from kvstore.limits import KiB
from kvstore.transfer import reached
from tests.client.kv import Cache, spec_of
from tests.client.on_device import told_at_once
from tests.gpu import DEVICE
from tests.kernels.gpu import fences
from tests.nodes import NodeProcess, running

Clients = Callable[..., Client]
TOKENS = 16
pytestmark = pytest.mark.usefixtures("fenced")


@pytest.fixture(scope="module")
def served() -> Iterator[NodeProcess]:
    with running() as node:
        yield node


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    told_at_once(monkeypatch)


@pytest.fixture
def client_of(served: NodeProcess) -> Iterator[Clients]:
    with ExitStack() as made:

        def make(name: str, transport: str = "shm", **shape: int) -> Client:
            options = {"deadline_seconds": 20.0, "transport": transport}
            return made.enter_context(Client.at(served.address, spec_of(name, **shape), **options))

        yield make


def in_hbm(client: Client, **options: object) -> Memory:
    """A cache of all layers and heads, as on a GPU."""
    from kvstore.kernels.gpu.staging import Staging

    cache = Cache(client.space.spec, TOKENS, kind="torch", **options)
    tensors = [one.to(DEVICE) for one in cache.tensors]
    fences.told(*tensors)
    made = client.memory(tensors, cache.axes, cache.block_table)
    return replace(made, staging=Staging(DEVICE))


def takes(client: Client, memory: Memory, part: Fragment | None = None) -> list[bool]:
    layout, chain = client.space.layout, client.chain(range(TOKENS))
    with client.writer(chain) as writer:  # which gives them up
        where = (writer._slots, memory, starts_of(chain), part or layout.whole)
        return client.connection.link().transport.takes(layout, *where).tolist()


def test_only_what_lies_together_in_large_runs_is_taken(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of("reached-runs", layers=3, kv_heads=4)
    layout, memory = client.space.layout, in_hbm(client)
    layer = layout.strip_stride * layout.kv_heads
    for part, together in [
        (layout.whole, 3 * layer),
        (Fragment(1, 1, 0, 4), layer),
        (Fragment(0, 3, 1, 2), 2 * layout.strip_stride),
    ]:
        monkeypatch.setattr(reached, "RUN_BYTES_MIN", together)
        assert takes(client, memory, part) == [True, True]
        monkeypatch.setattr(reached, "RUN_BYTES_MIN", together + 1)
        assert takes(client, memory, part) == [False, False]
    assert 128 * KiB > reached.RUN_BYTES_MIN, "small blocks go through pinned memory"


def test_sockets_take_none(client_of: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reached, "RUN_BYTES_MIN", 0)
    client = client_of("reached-sockets", transport="tcp")
    assert takes(client, in_hbm(client)) == [False, False]


def test_blocks_that_a_device_does_not_know_yet_are_staged(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstore.kernels.gpu.registered import Registered
    from kvstore.kernels.gpu.straight import Straight

    monkeypatch.setattr(reached, "RUN_BYTES_MIN", 0)
    client = client_of("reached-unknown")
    memory, staged, straight = in_hbm(client), [], []
    monkeypatch.setattr(Registered, "covers", lambda self, firsts, lasts: firsts == firsts.min())
    assert takes(client, memory) == [True, False]
    gathered, stored = type(memory.staging).gathered, Straight.gathered

    def by_staging(self: Any, run: Run, store: Any) -> None:
        staged.append(run.starts.tolist())
        gathered(self, run, store)

    def by_straight(self: Any, places: Places, *more: Any) -> None:
        straight.append(places.blocks.starts.tolist())
        stored(self, places, *more)

    monkeypatch.setattr(type(memory.staging), "gathered", by_staging)
    monkeypatch.setattr(Straight, "gathered", by_straight)
    assert client.put(client.chain(range(TOKENS)), memory) == 2
    assert (straight, staged) == ([[0]], [[TOKENS // 2]]), "each of the two goes its own way"


def test_devices_forget_the_mapping_before_it_goes(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstore.kernels.gpu.registered import Registered

    monkeypatch.setattr(reached, "RUN_BYTES_MIN", 0)
    client, ended = client_of("reached-end"), []
    memory, transport = in_hbm(client), client.connection.link().transport
    end = Registered.end

    def noted(self: Registered) -> None:
        ended.append(len(transport._writing.bytes))  # type: ignore[attr-defined]
        end(self)

    monkeypatch.setattr(Registered, "end", noted)
    assert takes(client, memory) == [True, True]
    mapped = len(transport._writing.bytes)  # type: ignore[attr-defined]
    client.close()
    assert ended == [mapped]
    assert not len(transport._writing.bytes), "it is still mapped"  # type: ignore[attr-defined]
    with pytest.raises(SessionEnded):
        transport.takes(client.space.layout, None, memory, None, None)  # type: ignore[arg-type]


def test_a_device_is_told_first_of_what_is_on_its_numa_node(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstore.kernels.gpu.registered import Registered

    monkeypatch.setattr(reached, "RUN_BYTES_MIN", 0)
    monkeypatch.setattr(reached, "of_device", {DEVICE: 1}.get)
    client, told = client_of("reached-near"), list[Any]()
    memory, arena = in_hbm(client), client.connection.link().transport._writing  # type: ignore[attr-defined]
    arena.spread = Spread.over([0, 1], arena.size, arena.size // 2)
    made = Registered.__init__

    def noted(self: Any, *some: Any, near: Any) -> None:
        told.append(near)
        made(self, *some, near=near)

    monkeypatch.setattr(Registered, "__init__", noted)
    assert takes(client, memory) == [True, True]
    assert told == [[(arena.size // 2, arena.size)]]


def test_a_mapping_that_is_closed_makes_nothing_known() -> None:
    closed = reached.Reached(None)  # type: ignore[arg-type]
    closed.close()
    assert closed._registered(torch.device("cpu")) is None
