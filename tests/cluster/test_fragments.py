"""Parts of blocks that ranks write at one host, and ranks of another number read at another.

4, 2 or 1 ranks ──▶ node a ──▶ node b ──▶ 1, 2 or 4 ranks      each node in a network of its own
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, KVSpec, Match, Miss
from kvstore.client.writer import Writer
from kvstore.layout import Fragment
from tests.client.kv import Cache, spec_of, truth_of
from tests.cluster.apart import Apart, Clients, following, three_apart
from tests.cluster.three import SOON_SECONDS
from tests.nodes import eventually

LAYERS, HEADS, TOKENS, BLOCKS = 4, 8, 30, 4  # the last block is a short one


@pytest.fixture(scope="module", params=["tcp", "tcp,ucx"])
def standing_apart(request: pytest.FixtureRequest) -> Iterator[Apart]:
    """By each way that there is between nodes; where ucx is offered, it is taken."""
    if "ucx" in request.param:
        pytest.importorskip("nixl_cu12")
    with three_apart("--transport", request.param) as made:
        if "ucx" in request.param:
            eventually(lambda: made.reads("b", "a") or by_ucx(made), SOON_SECONDS)
        before = by_ucx(made)
        yield made
        assert ("ucx" in request.param) == (by_ucx(made) > before)


def by_ucx(apart: Apart) -> int:
    return apart.at["b"].counters()["ucx_fetched_bytes"]


class Rank:
    """One of several that share a sequence: its heads of it, and its own session."""

    def __init__(self, client: Client, rank: int, ranks: int, seed: int = 0) -> None:
        self.client, heads = client, (rank * HEADS // ranks, HEADS // ranks)
        self.fragment = Fragment(0, LAYERS, *heads)
        self.cache = Cache(client.space.spec, TOKENS, heads=heads, seed=seed, axes="pthkd")

    @property
    def memory(self) -> Any:
        return self.cache.memory(self.client)

    def writes(self, chain: Any, group: str, truth: np.ndarray) -> Writer:
        self.cache.fill(truth)
        told = {"fragment": self.fragment, "writer_group": group, "hand_off": True}
        return self.client.writer(chain, **told)

    def store(self, writer: Writer, layer: int) -> None:
        cache = self.cache
        writer.put_layer(layer, cache.tensors[layer], cache.axes, block_table=cache.block_table)

    def has(self, truth: np.ndarray) -> bool:
        """All of its part, and not a byte beside it."""
        return self.cache.holds(truth) and self.cache.untouched(0, TOKENS)


names = itertools.count()


def ranks_at(
    client_at: Clients, name: str, spec: KVSpec, count: int, transport: str = "auto"
) -> list[Rank]:
    return [
        Rank(client_at(name, spec, transport), rank, count, seed=next(names))
        for rank in range(count)
    ]


def new_spec() -> KVSpec:
    return spec_of(f"across-{next(names)}", layers=LAYERS, kv_heads=HEADS)


def sealed(ranks: Sequence[Rank], writers: Sequence[Writer]) -> list[list[str]]:
    for one, writer in zip(ranks, writers, strict=True):
        writer.put(one.memory)
    return [writer.seal() for writer in writers]


def loaded(rank: Rank, chain: Any) -> None:
    """All of it, sooner or later."""
    eventually(lambda: rank.client.get(chain, rank.memory).tokens == TOKENS, SOON_SECONDS)


PAIRS = pytest.mark.parametrize(("writers", "readers"), [(4, 2), (2, 4), (1, 4), (4, 1)])
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


@PAIRS
@TRANSPORTS
def test_what_ranks_of_any_number_sealed_at_one_host_ranks_of_any_other_load_at_another(
    apart: Apart, client_at: Clients, writers: int, readers: int, transport: str
) -> None:
    spec = new_spec()
    there = ranks_at(client_at, "a", spec, writers, transport)
    here = ranks_at(client_at, "b", spec, readers, transport)
    chain, truth = there[0].client.chain(range(TOKENS)), truth_of(spec, TOKENS, 1)
    *before, last = sealed(there, [one.writes(chain, "g", truth) for one in there])
    assert all(one == ["WAITING"] * BLOCKS for one in before) and last == ["SEALED"] * BLOCKS
    fetched = apart.at["b"].counters()["fetched_blocks"]
    for one in here:
        loaded(one, chain)
        assert one.has(truth)
    assert apart.at["b"].counters()["fetched_blocks"] == fetched + BLOCKS, "once for all ranks"


@PAIRS
@TRANSPORTS
def test_ranks_at_another_host_follow_ranks_of_any_number_layer_by_layer(
    apart: Apart, client_at: Clients, writers: int, readers: int, transport: str
) -> None:
    spec = new_spec()
    there = ranks_at(client_at, "a", spec, writers, transport)
    here = ranks_at(client_at, "b", spec, readers, transport)
    chain, truth = there[0].client.chain(range(TOKENS)), truth_of(spec, TOKENS, 2)
    windows = [one.writes(chain, "g", truth) for one in there]
    behind = [following(one.client, chain, one.memory, windows[0]) for one in here]
    for layer in range(LAYERS):
        assert not any(reader.poll() for reader in behind), "nobody wrote it yet"
        for one, writer in zip(there, windows, strict=True):
            assert [reader.layers for reader in behind] == [layer] * readers
            one.store(writer, layer)
        for reader in behind:
            assert reader.wait(SOON_SECONDS, layers=layer + 1)
    for one, reader in zip(here, behind, strict=True):
        assert reader.wait(SOON_SECONDS) and (reader.tokens, reader.miss) == (TOKENS, None)
        assert reader.sealed_tokens == 0 and one.has(truth)
        reader.close()
    assert [writer.seal() for writer in windows][-1] == ["SEALED"] * BLOCKS


def test_fragments_of_two_writer_groups_never_make_a_block_that_is_sealed_or_served(
    apart: Apart, client_at: Clients
) -> None:
    spec = new_spec()
    there, here = ranks_at(client_at, "a", spec, 4), ranks_at(client_at, "b", spec, 2)
    chain, truth = there[0].client.chain(range(TOKENS)), truth_of(spec, TOKENS, 3)
    groups = ("one", "one", "two", "two")
    windows = [one.writes(chain, g, truth) for one, g in zip(there, groups, strict=True)]
    behind = following(here[0].client, chain, here[0].memory, windows[0])
    assert sealed(there, windows) == [["WAITING"] * BLOCKS] * 4, "each group lacks half the heads"
    assert there[0].client.match(chain) == Match(0, 0, Miss.UNSEALED)
    for one in here:  # also who wants the very heads that one group has written
        assert one.client.match(chain).blocks == 0
        assert one.client.get(chain, one.memory).blocks == 0 and one.cache.untouched()
    assert not behind.poll() and behind.layers == 0
    for writer in windows:
        writer.abort()
    assert behind.wait(SOON_SECONDS) and behind.blocks == 0 and here[0].cache.untouched()
    behind.close()
    eventually(lambda: apart.at["a"].stats().windows == 0, SOON_SECONDS)
    assert there[0].client.match(chain) == Match(0, 0, Miss.ABSENT), "nothing of it is left"


def test_of_two_groups_that_write_the_same_blocks_another_host_has_one_group_s_bytes_only(
    client_at: Clients,
) -> None:
    spec = new_spec()
    first, second = (ranks_at(client_at, "a", spec, 2) for _ in range(2))
    chain = first[0].client.chain(range(TOKENS))
    truths = [truth_of(spec, TOKENS, seed) for seed in (4, 5)]  # a prompt's bits may differ
    lost = [one.writes(chain, "first", truths[0]) for one in first]
    won = [one.writes(chain, "second", truths[1]) for one in second]
    lost[0].put(first[0].memory)
    assert lost[0].seal() == ["WAITING"] * BLOCKS
    assert sealed(second, won)[-1] == ["SEALED"] * BLOCKS
    lost[1].put(first[1].memory)
    assert lost[1].seal() == ["EXISTED"] * BLOCKS
    for one in ranks_at(client_at, "b", spec, 4):
        loaded(one, chain)
        assert one.has(truths[1])
