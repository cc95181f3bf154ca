"""Whoever reads a block that is overwritten meanwhile has a miss, and never wrong bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvstore.client import Client, Match, Miss
from kvstore.layout import Fragment
from kvstore.wire.v1 import admin_pb2
from tests.client.kv import Cache, spec_of, truth_of
from tests.client.peer import peers
from tests.nodes import NodeProcess, running

TOKENS, BLOCKS = 128, 4
SHAPE = {"layers": 4, "kv_heads": 4, "head_dim": 32, "block_tokens": 32}
PIN_MS = 1
STRESS_SECONDS = 4.0


@pytest.fixture
def full_node() -> Iterator[NodeProcess]:
    """Room for a few sequences, so that each put evicts another."""
    with running(dram="4MiB", slab="1MiB") as node:
        yield node


def overwrite(client: Client, seed: int, sequences: int, tokens: int = TOKENS) -> None:
    """Put so much that all that is not held has to go."""
    for number in range(sequences):
        start = 10_000_000 + 10_000 * (sequences * seed + number)
        source = Cache(client.space.spec, tokens)
        source.fill(truth_of(client.space.spec, tokens, seed + number))
        assert client.put(client.chain(range(start, start + tokens)), source.memory(client))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_evicted_between_open_and_poll_is_a_miss(full_node: NodeProcess, seed: int) -> None:
    dice, spec = random.Random(seed), spec_of("torn", **SHAPE)
    truth = truth_of(spec, TOKENS, seed)
    with Client.at(full_node.address, spec, deadline_seconds=20.0) as client:
        source, chain = Cache(spec, TOKENS), client.chain(range(TOKENS))
        source.fill(truth)
        client.put(chain, source.memory(client))
        heads = (dice.randrange(4), 1) if dice.random() < 0.5 else (0, 4)
        target = Cache(spec, TOKENS, heads=heads, seed=seed, page_tokens=dice.choice([7, 16, 32]))
        with client.reader(chain, target.memory(client), pin_ms=PIN_MS) as reader:
            assert reader.blocks == 0 and reader.miss is None
            _wait_unpinned(client)
            if seed % 2:
                overwrite(client, seed, sequences=20)
            else:  # in slots of another size: where heads were is now the middle of a block
                other = spec_of("other", layers=3, kv_heads=2, head_dim=48, block_tokens=32)
                with Client.at(full_node.address, other, deadline_seconds=20.0) as rival:
                    overwrite(rival, seed, sequences=2, tokens=45 * 32)
            assert reader.poll() is True
            assert (reader.blocks, reader.miss) == (0, Miss.EVICTED)
        assert client.match(chain) == Match(0, 0, Miss.EVICTED)
        assert _stats(client).counters.get("damaged_blocks", 0) == 0, "nobody is to blame"


def test_a_view_of_an_evicted_block_is_not_confirmed(full_node: NodeProcess) -> None:
    spec = spec_of("torn", **SHAPE)
    with Client.at(full_node.address, spec, deadline_seconds=20.0) as client:
        source, chain = Cache(spec, TOKENS), client.chain(range(TOKENS))
        client.put(chain, source.memory(client))
        with client.pin(chain, pin_ms=PIN_MS) as pinned:
            assert pinned.blocks == BLOCKS
            _wait_unpinned(client)
            overwrite(client, 1, sequences=20)
            assert pinned.confirm() == 0


def test_readers_with_no_pin_beside_a_process_that_evicts_never_get_a_wrong_byte(
    full_node: NodeProcess,
) -> None:
    dice, spec = random.Random(5), spec_of("torn", **SHAPE)
    chains = {seed: range(seed * 1_000, seed * 1_000 + TOKENS) for seed in range(3)}
    truths = {seed: truth_of(spec, TOKENS, seed) for seed in chains}
    hits, misses = 0, 0
    whole = Fragment(0, 4, 0, 4)
    with (
        Client.at(full_node.address, spec, deadline_seconds=20.0) as client,
        peers(1, full_node.directory, "torn", **SHAPE) as (evictor,),
    ):
        evictor.ask("churn", seconds=0.0, seed=0, tokens=TOKENS)
        evictor.tell("churn", seconds=STRESS_SECONDS, seed=100, tokens=TOKENS)
        deadline = time.monotonic() + STRESS_SECONDS
        while time.monotonic() < deadline:
            seed = dice.choice(list(chains))
            chain, source = client.chain(chains[seed]), Cache(spec, TOKENS)
            if client.match(chain).blocks < BLOCKS:
                source.fill(truths[seed])
                client.put(chain, source.memory(client))
            target = Cache(spec, TOKENS, seed=seed, page_tokens=dice.choice([5, 16, 48]))
            memory = target.memory(client)
            with client.reader(chain, memory, fragment=whole, pin_ms=PIN_MS) as reader:
                if dice.random() < 0.7:
                    time.sleep(dice.random() * 0.3)
                reader.poll()
                assert target.holds(truths[seed], 0, reader.tokens)
                assert target.untouched(0, TOKENS)
                assert reader.done
                hits += reader.blocks
                misses += BLOCKS - reader.blocks
        assert evictor.answer() > 0
        assert _stats(client).counters.get("damaged_blocks", 0) == 0
    assert hits and misses, "a test of both"


def _wait_unpinned(client: Client) -> None:
    """The node ends pins on its own clock, a few times a second."""
    deadline = time.monotonic() + 10.0
    while _stats(client).pins:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _stats(client: Client) -> Any:
    return client.connection.call(lambda link: link.admin.Stats, admin_pb2.StatsRequest())
