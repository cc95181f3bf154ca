"""Ranks write and read their own heads and layers of a block; a block is whole or it is nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Client, Match, Miss
from kvstore.errors import AlreadyWritten, WindowClosed
from kvstore.layout import Fragment
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of, truth_of
from tests.client.peer import peers

LAYERS, HEADS = 4, 8
SHAPE = {"layers": LAYERS, "kv_heads": HEADS}
TOKENS, SEED = 30, 7  # four blocks, the last one short
QUARTERS = [(rank * 2, 2) for rank in range(4)]
HALVES = [(rank * 4, 4) for rank in range(2)]
WHOLE = (0, LAYERS)


def test_four_processes_write_a_quarter_of_the_heads_and_two_read_a_half(
    node: Node, client_of: Callable[..., Client], stats_of: Callable[[Client], Any]
) -> None:
    client = client_of(spec_of("ranks", **SHAPE))
    chain = client.chain(range(SEED, SEED + TOKENS))
    with peers(4, node.directory, "ranks", **SHAPE) as ranks:
        same = {"tokens": TOKENS, "seed": SEED, "layers": WHOLE}
        for one, heads in zip(ranks, QUARTERS, strict=True):
            one.tell("reserve", **same, heads=heads, group="step-1")
        assert [one.answer() for one in ranks] == [[]] * 4
        for layer in reversed(range(LAYERS)):
            for one in ranks:
                one.tell("store", layer=layer)
            assert [one.answer() for one in ranks] == ["stored"] * 4
        for one in ranks[1:]:
            assert one.ask("seal") == ["WAITING"] * 4
            assert client.match(chain) == Match(0, 0, Miss.UNSEALED)
        assert ranks[0].ask("seal") == ["SEALED"] * 4
        assert client.match(chain) == Match(4, TOKENS, None)
        assert stats_of(client).windows == 0
    with peers(2, node.directory, "ranks", **SHAPE) as ranks:
        for one, heads in zip(ranks, HALVES, strict=True):
            one.tell("load", **same, heads=heads)
        assert [one.answer() for one in ranks] == [[4, None, True]] * 2


@pytest.mark.parametrize(
    "parts",
    [
        [((0, HEADS), (0, 1)), ((0, HEADS), (1, 3))],  # pipeline parallel
        [((0, 4), (0, 2)), ((4, 4), (0, 2)), ((0, 4), (2, 2)), ((4, 4), (2, 2))],  # and tensor
        [((0, HEADS), (0, 1)), ((0, 3), (1, 3)), ((3, 5), (1, 3))],  # uneven
    ],
    ids=["layers", "both", "uneven"],
)
def test_ranks_write_any_parts_that_make_the_block_whole(
    client_of: Callable[..., Client], parts: list[Any], request: pytest.FixtureRequest
) -> None:
    spec = spec_of(f"parts-{request.node.callspec.id}", **SHAPE)
    truth, clients = truth_of(spec, TOKENS, SEED), [client_of(spec) for _ in parts]
    chain = clients[0].chain(range(TOKENS))
    writers = []
    for client, (heads, layers) in zip(clients, parts, strict=True):
        cache = Cache(spec, TOKENS, heads=heads, layers=layers, seed=len(writers))
        cache.fill(truth)
        fragment = Fragment(*layers, *heads)
        writers.append(client.writer(chain, fragment=fragment, writer_group="g"))
        writers[-1].put(cache.memory(client))
    for writer in writers[:-1]:
        assert writer.seal() == ["WAITING"] * 4
    assert writers[-1].seal() == ["SEALED"] * 4
    for heads, layers in [((0, HEADS), WHOLE), *parts, ((5, 3), (1, 2))]:
        cache = Cache(spec, TOKENS, heads=heads, layers=layers, axes="kpthd", seed=9)
        assert clients[0].get(chain, cache.memory(clients[0])).tokens == TOKENS
        assert cache.holds(truth) and cache.untouched(0, TOKENS)


def test_a_writer_that_dies_unsealed_dooms_the_block_for_its_whole_group(
    node: Node,
    client_of: Callable[..., Client],
    stats_of: Callable[[Client], Any],
    eventually: Callable[..., Any],
) -> None:
    spec = spec_of("rank-dies", **SHAPE)
    client = client_of(spec)
    chain, cache = client.chain(range(SEED, SEED + TOKENS)), Cache(spec, TOKENS)
    cache.fill(truth_of(spec, TOKENS, SEED))
    ranks = [client_of(spec) for _ in range(2)]
    writers = [
        one.writer(chain, fragment=Fragment(0, LAYERS, *heads), writer_group="g")
        for one, heads in zip(ranks, QUARTERS[:2], strict=True)
    ]
    for writer in writers:
        writer.put(cache.memory(client))
    with peers(1, node.directory, spec.model, **SHAPE) as (doomed,):
        assert writers[0].seal() == ["WAITING"] * 4
        doomed.ask("reserve", tokens=TOKENS, seed=SEED, heads=QUARTERS[2], layers=WHOLE, group="g")
        doomed.ask("store", layer=0)
        assert stats_of(client).windows == 3 * 4
        doomed.kill()
        eventually(lambda: stats_of(client).windows <= 4)
    with pytest.raises(WindowClosed, match="another writer of its group gave the block up"):
        writers[1].seal()
    writers[1].abort()
    eventually(lambda: stats_of(client).windows == 0)
    assert client.match(chain) == Match(0, 0, Miss.ABSENT)
    assert client.put(chain, cache.memory(client)) == 4, "another may begin anew"


def test_readers_of_parts_tell_whether_they_have_parts_of_the_same_bytes(
    client_of: Callable[..., Client],
) -> None:
    spec = spec_of("copies", **SHAPE)
    one, other = client_of(spec), client_of(spec)
    chain = one.chain(range(TOKENS))

    def copies(client: Client, heads: tuple[int, int], **options: Any) -> tuple[int, int]:
        cache = Cache(spec, TOKENS, heads=heads)
        with client.reader(chain, cache.memory(client), **options) as reader:
            assert reader.poll() and reader.blocks == 4
            assert reader.copies(3) != reader.copies(4)
            return reader.copies(4)

    def put(writer_seed: int) -> None:
        cache = Cache(spec, TOKENS)
        cache.fill(truth_of(spec, TOKENS, writer_seed))
        with one.writer(chain, hand_off=True) as writer:
            writer.put(cache.memory(one))
            # Of a block that is not sealed yet the slot alone tells.
            seen.append(copies(one, HALVES[0], hand_offs=writer.hand_offs))
            assert seen[-1][1] == 0
            writer.seal()

    seen: list[tuple[int, int]] = []
    put(1)
    first = copies(one, HALVES[0])
    assert first[0] == seen[0][0] and first[1] != 0
    assert copies(other, HALVES[1]) == first
    one.remove(chain)
    put(2)
    second = copies(other, HALVES[1])
    assert second[0] != first[0] and second[1] != first[1], "another writer's"
    one.remove(chain)
    put(1)
    again = copies(other, HALVES[1])
    assert again[0] not in (first[0], second[0]) and again[1] == first[1], (
        "the same bytes elsewhere"
    )


def test_members_of_a_group_must_own_separate_fragments(client_of: Callable[..., Client]) -> None:
    client = client_of(spec_of("overlap", **SHAPE))
    chain = client.chain(range(8))
    with (
        client.writer(chain, fragment=Fragment(0, 4, 0, 4), writer_group="g"),
        pytest.raises(AlreadyWritten, match="separate fragments"),
    ):
        client.writer(chain, fragment=Fragment(0, 4, 3, 1), writer_group="g")
