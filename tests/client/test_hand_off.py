"""A reader follows a writer layer by layer, and is never told of more than was stored."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, Match, Miss, Reader, Writer
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of, truth_of
from tests.client.peer import peers

LAYERS, TOKENS, BLOCKS = 5, 30, 4
Clients = Callable[..., Client]


class Pair:
    """A writer and a reader of one sequence, each with a client and a cache of its own."""

    def __init__(self, client_of: Clients, model: str, seed: int = 0) -> None:
        self.spec = spec_of(model, layers=LAYERS)
        self.prefill, self.decode = client_of(self.spec), client_of(self.spec)
        self.chain = self.prefill.chain(range(TOKENS))
        self.truth = truth_of(self.spec, TOKENS, seed)
        self.source = Cache(self.spec, TOKENS, seed=seed)
        self.source.fill(self.truth)
        self.target = Cache(self.spec, TOKENS, seed=seed + 1, axes="pthkd", page_tokens=7)

    def writer(self) -> Writer:
        return self.prefill.writer(self.chain, hand_off=True)

    def reader(self, writer: Writer, **options: Any) -> Reader:
        memory = self.target.memory(self.decode)
        return self.decode.reader(self.chain, memory, hand_offs=writer.hand_offs, **options)

    def store(self, writer: Writer, layer: int, **options: Any) -> None:
        tensor, table = self.source.tensors[layer], self.source.block_table
        writer.put_layer(layer, tensor, self.source.axes, block_table=table, **options)

    def layers_right(self, count: int) -> bool:
        """Whether the first `count` layers of the target are the source's, the others untouched."""
        head = [self.target._canonical(raw) for raw in self.target._raw]
        for layer, view in enumerate(head):
            found = view[self.target._pages, self.target._rows]
            known = self.truth[layer].transpose(1, 0, 2, 3)
            wanted = known if layer < count else np.full_like(known, 0xA5)
            if not np.array_equal(found, wanted):
                return False
        return True


@pytest.mark.parametrize("seed", range(4))
def test_a_poll_loads_exactly_the_leading_layers_stored_so_far(
    client_of: Clients, seed: int
) -> None:
    pair = Pair(client_of, f"layers-{seed}", seed)
    order = list(range(LAYERS))
    random.Random(seed).shuffle(order)
    with pair.writer() as writer, pair.reader(writer) as reader:
        assert reader.poll() is False and reader.layers == reader.blocks == 0
        stored: set[int] = set()
        for layer in order:
            pair.store(writer, layer)
            stored.add(layer)
            leading = next(i for i in range(LAYERS + 1) if i not in stored)
            assert reader.poll() is (leading == LAYERS)
            assert reader.layers == leading
            assert pair.layers_right(leading)
            assert reader.wait(0.0, layers=leading) is True
        assert (reader.blocks, reader.tokens, reader.miss) == (BLOCKS, TOKENS, None)
        assert reader.sealed_tokens == 0, "it was read before the seal"
        assert reader.bytes_loaded == pair.truth.nbytes
        assert pair.decode.match(pair.chain) == Match(0, 0, Miss.UNSEALED)
        assert writer.seal() == ["SEALED"] * BLOCKS
    assert pair.target.untouched(0, TOKENS)


def test_blocks_of_a_chunked_prefill_land_as_they_are_stored(client_of: Clients) -> None:
    pair = Pair(client_of, "chunks")
    with pair.writer() as writer, pair.reader(writer) as reader:
        for layer in range(LAYERS):
            pair.store(writer, layer, blocks=(0, 2))
        assert writer.seal((0, 2)) == ["SEALED"] * 2
        assert reader.poll() is False and (reader.blocks, reader.layers) == (2, 0)
        pair.store(writer, 0, blocks=(2, 4))
        assert reader.wait(5.0, layers=1) and reader.layers == 1
        for layer in range(1, LAYERS):
            pair.store(writer, layer)  # all that is open
        assert reader.wait(5.0) and reader.blocks == BLOCKS
        assert writer.seal() == ["SEALED"] * 2
    assert pair.target.holds(pair.truth)


def test_a_hand_off_of_a_sealed_block_reads_the_block(client_of: Clients) -> None:
    pair = Pair(client_of, "sealed")
    with pair.writer() as writer:
        writer.put(pair.source.memory(pair.prefill))
        writer.seal((0, 3))
        with pair.reader(writer) as reader:
            assert reader.poll() and reader.tokens == TOKENS
            assert reader.sealed_tokens == 24
    assert pair.target.holds(pair.truth)


def test_the_second_writer_of_a_key_loses_but_its_hand_off_is_served(
    client_of: Clients, stats_of: Callable[[Client], Any], eventually: Callable[..., Any]
) -> None:
    pair = Pair(client_of, "second")
    rival = Cache(pair.spec, TOKENS)
    rival.fill(truth_of(pair.spec, TOKENS, 99))  # the same prompt may differ in its bits
    with pair.prefill.writer(pair.chain) as first, pair.writer() as second:
        first.put(rival.memory(pair.prefill))
        for layer in range(LAYERS - 1):
            pair.store(second, layer)
        with pair.reader(second) as reader:
            assert reader.poll() is False and reader.layers == LAYERS - 1
            assert first.seal() == ["SEALED"] * BLOCKS
            pair.store(second, LAYERS - 1)
            assert second.seal() == ["EXISTED"] * BLOCKS
            assert reader.poll() is True
            assert (reader.blocks, reader.miss) == (BLOCKS, None)
    assert pair.target.holds(pair.truth), "what it follows is the second's, all of it"
    got = Cache(pair.spec, TOKENS)
    assert pair.decode.get(pair.chain, got.memory(pair.decode)).blocks == BLOCKS
    assert got.holds(truth_of(pair.spec, TOKENS, 99)), "what stays is the first's"
    eventually(lambda: stats_of(pair.decode).pins == 0)
    assert stats_of(pair.decode).windows == 0


def test_a_writer_that_aborts_leaves_its_reader_with_the_wholly_loaded_blocks(
    client_of: Clients,
) -> None:
    pair = Pair(client_of, "abort")
    with pair.writer() as writer, pair.reader(writer) as reader:
        for layer in range(LAYERS):
            pair.store(writer, layer, blocks=(0, 2))
        pair.store(writer, 0, blocks=(2, 4))
        assert reader.poll() is False and reader.layers == 1
        writer.abort()
        assert reader.wait(10.0) is True
        assert (reader.blocks, reader.tokens, reader.miss) == (2, 16, Miss.ABSENT)
        assert pair.target.holds(pair.truth, 0, 16)


def test_a_reader_polls_what_was_stored_just_before_an_abort(client_of: Clients) -> None:
    pair = Pair(client_of, "abort-late")
    with pair.writer() as writer, pair.reader(writer) as reader:
        writer.put(pair.source.memory(pair.prefill), blocks=(0, 1))
        writer.abort()
        assert reader.poll() is True
        assert (reader.blocks, reader.miss) == (1, Miss.ABSENT)
    assert pair.target.holds(pair.truth, 0, 8)


def test_a_writer_that_dies_leaves_its_reader_with_a_miss(
    node: Node, client_of: Clients, stats_of: Callable[[Client], Any], eventually: Any
) -> None:
    spec = spec_of("dies", layers=LAYERS)
    client, target = client_of(spec), Cache(spec, TOKENS)
    with peers(1, node.directory, spec.model, layers=LAYERS) as (prefill,):
        whole = {"heads": (0, 4), "layers": (0, LAYERS), "hand_off": True, "group": ""}
        hand_offs = prefill.ask("reserve", tokens=TOKENS, seed=3, **whole)
        chain = client.chain(range(3, 3 + TOKENS))
        handles = [bytes.fromhex(one) for one in hand_offs]
        with client.reader(chain, target.memory(client), hand_offs=handles) as reader:
            assert prefill.ask("store", layer=0) == "stored"
            assert reader.wait(5.0, layers=1) is True and reader.layers == 1
            assert reader.wait(0.05) is False, "no more has come"
            prefill.kill()
            assert reader.wait(10.0) is True
            assert (reader.blocks, reader.miss) == (0, Miss.ABSENT)
    eventually(lambda: stats_of(client).pins == 0 and stats_of(client).windows == 0)


def test_a_wait_for_layers_that_do_not_come_returns_false(client_of: Clients) -> None:
    pair = Pair(client_of, "late")
    with pair.writer() as writer, pair.reader(writer) as reader:
        pair.store(writer, 0)
        assert reader.wait(5.0, layers=1) is True
        assert reader.wait(0.02, layers=2) is False
        assert reader.wait(0.0) is False
        assert (reader.blocks, reader.miss) == (0, None), "late is not lost"


def test_a_stale_hand_off_reads_the_block_by_its_key(client_of: Clients) -> None:
    pair = Pair(client_of, "stale")
    with pair.writer() as writer:
        writer.abort()
    assert pair.prefill.put(pair.chain, pair.source.memory(pair.prefill)) == BLOCKS
    with pair.reader(writer) as reader:
        assert reader.poll() and reader.tokens == reader.sealed_tokens == TOKENS
    assert pair.target.holds(pair.truth)
