"""A client of another host, its node, and blocks that are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.wire.v1 import admin_pb2
from tests.client.kv import Cache, spec_of, truth_of
from tests.nodes import NodeProcess, running

TOKENS = 64
DENSE = {"axes": "phtkd", "page_tokens": 32}  # strips of 4 KiB, whole in a page
MIXED = {"axes": "pthkd", "page_tokens": 16}
WAYS = pytest.mark.parametrize("way", [DENSE, MIXED], ids=["direct", "staged"])
SPEC = spec_of("tcp", layers=3, kv_heads=4, head_dim=16, block_tokens=32)
seeds = iter(range(1, 1_000_000))


@pytest.fixture(scope="module")
def served() -> Iterator[NodeProcess]:
    with running(dram="64MiB", slab="4MiB") as node:
        yield node


@pytest.fixture
def client(served: NodeProcess) -> Iterator[Client]:
    with Client.at(served.address, SPEC, deadline_seconds=20.0, transport="tcp") as made:
        yield made


def stored(client: Client, tokens: int = TOKENS) -> tuple[Any, np.ndarray]:
    """A new sequence in the node, put there undisturbed, and its bytes."""
    seed = next(seeds)
    chain = client.chain(range(1_000 * seed, 1_000 * seed + tokens))
    truth = truth_of(client.space.spec, tokens, seed)
    source = Cache(client.space.spec, tokens, **DENSE)
    source.fill(truth)
    assert client.put(chain, source.memory(client)) == len(chain)
    return chain, truth


def stats(client: Client) -> Any:
    return client.connection.call(lambda link: link.admin.Stats, admin_pb2.StatsRequest())
