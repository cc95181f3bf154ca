"""A node that is given many bytes over the network: it has compiled code for them from then on, and
what it takes with it is as well proven as what it took without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.errors import Unavailable
from kvstore.layout import Fragment
from kvstore.transfer import socket_kernels
from kvstore.transfer.direct import Pages
from kvstore.transfer.protocol import Ints
from tests.client.kv import Cache, spec_of, truth_of
from tests.nodes import NodeProcess, eventually, running

SPEC = spec_of("takes-puts", layers=4, kv_heads=4, head_dim=64, block_tokens=128)
WAY = {"axes": "phtkd", "page_tokens": 128}
BLOCKS = 16  # of 1 MiB: more than one run's worth on each of two connections
SECONDS = 120.0  # for the compiler, on a busy machine


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with running(dram="128MiB", slab="32MiB") as made:
        yield made


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with Client.at(node.address, SPEC, deadline_seconds=20.0, transport="tcp") as made:
        yield made


def computes(node: NodeProcess) -> bool:
    return "llvmlite" in Path(f"/proc/{node.pid}/maps").read_text()


def put(client: Client, number: int, blocks: int = BLOCKS) -> tuple[Any, np.ndarray]:
    tokens = blocks * 128
    chain = client.chain(range(100_000 * number, 100_000 * number + tokens))
    truth, source = truth_of(SPEC, tokens, number), Cache(SPEC, tokens, **WAY)
    source.fill(truth)
    assert client.put(chain, source.memory(client)) == blocks
    return chain, truth


def test_many_bytes_have_it_load_compiled_code_and_few_do_not(
    node: NodeProcess, client: Client
) -> None:
    few = put(client, 1, blocks=2)
    assert not computes(node)
    before = put(client, 2)
    eventually(lambda: computes(node), SECONDS)
    after = put(client, 3)
    for chain, truth in (few, before, after):
        target = Cache(SPEC, truth.shape[2], **WAY)
        assert client.get(chain, target.memory(client)).blocks == len(chain)
        assert target.holds(truth, 0, truth.shape[2])


def test_what_comes_damaged_is_refused_with_it_too(
    node: NodeProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, 4)
    eventually(lambda: computes(node), SECONDS)
    put(client, 5)
    hashed = Pages.hashed

    def wrong(self: Pages, rows: Ints, fragment: Fragment) -> Any:
        said = hashed(self, rows, fragment)
        said[0, 5] ^= 1
        return said

    monkeypatch.setattr(socket_kernels, "at_hand", lambda size: None)  # of this process alone
    monkeypatch.setattr(Pages, "hashed", wrong)
    with pytest.raises(Unavailable, match="damaged on their way"):
        put(client, 6)
