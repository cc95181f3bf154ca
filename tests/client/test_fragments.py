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


@pytest.mark.parametrize(
    "parts",
    [
        [(heads, WHOLE) for heads in QUARTERS],  # tensor parallel
        [((0, HEADS), (0, 1)), ((0, HEADS), (1, 3))],  # pipeline parallel
        [((0, 4), (0, 2)), ((4, 4), (0, 2)), ((0, 4), (2, 2)), ((4, 4), (2, 2))],  # both
    ],
    ids=["heads", "layers", "both"],
)
def test_a_block_seals_with_its_last_writer_and_is_read_in_other_parts(
    node: Node,
    client_of: Callable[..., Client],
    stats_of: Callable[[Client], Any],
    parts: list[tuple[Any, Any]],
    request: pytest.FixtureRequest,
) -> None:
    model = f"ranks-{request.node.callspec.id}"
    client = client_of(spec_of(model, **SHAPE))
    chain = client.chain(range(SEED, SEED + TOKENS))
    with peers(len(parts), node.directory, model, **SHAPE) as writers:
        for one, (heads, layers) in zip(writers, parts, strict=True):
            one.tell(
                "reserve", tokens=TOKENS, seed=SEED, heads=heads, layers=layers, group="step-1"
            )
        assert [one.answer() for one in writers] == [[]] * len(parts)
        for one, (_, (first, count)) in zip(writers, parts, strict=True):
            for layer in reversed(range(first, first + count)):
                one.tell("store", layer=layer)
            assert [one.answer() for _ in range(count)] == ["stored"] * count
        for one in writers[1:]:
            assert one.ask("seal") == ["WAITING"] * 4
            assert client.match(chain) == Match(0, 0, Miss.UNSEALED)
        assert writers[0].ask("seal") == ["SEALED"] * 4
        assert client.match(chain) == Match(4, TOKENS, None)
        assert stats_of(client).windows == 0
        readers = writers[:2]
        for one, heads in zip(readers, HALVES, strict=True):
            one.tell("load", tokens=TOKENS, seed=SEED, heads=heads, layers=WHOLE)
        assert [one.answer() for one in readers] == [[4, None, True]] * 2


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
    with pytest.raises(WindowClosed, match="given up by another writer of its group"):
        writers[1].seal()
    writers[1].abort()
    eventually(lambda: stats_of(client).windows == 0)
    assert client.match(chain) == Match(0, 0, Miss.ABSENT)
    assert client.put(chain, cache.memory(client)) == 4, "another may begin anew"


def test_members_of_a_group_must_own_separate_fragments(client_of: Callable[..., Client]) -> None:
    client = client_of(spec_of("overlap", **SHAPE))
    chain = client.chain(range(8))
    with (
        client.writer(chain, fragment=Fragment(0, 4, 0, 4), writer_group="g"),
        pytest.raises(AlreadyWritten, match="separate fragments"),
    ):
        client.writer(chain, fragment=Fragment(0, 4, 3, 1), writer_group="g")
