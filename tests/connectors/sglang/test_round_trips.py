"""A page that was stored comes back byte for byte, to any layout, or it is a miss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.connectors.sglang.engine import (
    HEADS,
    MHA_LAYOUTS,
    MLA_LAYOUTS,
    PAGES,
    Engine,
    fill,
    mha_pool,
    mla_pool,
    page_bytes,
)
from tests.nodes import NodeProcess, mapped

Engines = Callable[..., Engine]
numbers = itertools.count(1)
LAYOUTS = [(mha_pool, one) for one in MHA_LAYOUTS] + [(mla_pool, one) for one in MLA_LAYOUTS]


def names(count: int) -> list[str]:
    """Keys that no other test has: hex digests, as SGLang's page hashes are."""
    return [f"{next(numbers):064x}" for _ in range(count)]


def filled(pool: Any, seed: int = 1) -> Any:
    fill(pool, seed)
    return pool


def same(ours: Any, pages: list[int], theirs: Any, there: list[int]) -> bool:
    pairs = zip(pages, there, strict=True)
    return all(page_bytes(ours, one) == page_bytes(theirs, other) for one, other in pairs)


@pytest.mark.parametrize(("make", "layout"), LAYOUTS)
def test_pages_come_back_byte_for_byte_and_nothing_else_is_touched(
    engine_of: Engines, make: Any, layout: str
) -> None:
    keys, ours = names(4), engine_of(filled(make(layout)))
    before = [page_bytes(ours.pool, page) for page in range(PAGES)]
    assert ours.store(keys, 7, 0, 3, 2) == [True] * 4
    assert [page_bytes(ours.pool, page) for page in range(PAGES)] == before, "it is only read"
    theirs = engine_of(filled(make(layout), 2))
    left = [page_bytes(theirs.pool, page) for page in range(PAGES)]
    assert theirs.load(keys, 1, 4, 9, 15) == [True] * 4
    assert same(ours.pool, [7, 0, 3, 2], theirs.pool, [1, 4, 9, 15])
    others = [page for page in range(PAGES) if page not in (1, 4, 9, 15)]
    assert all(page_bytes(theirs.pool, page) == left[page] for page in others)


@pytest.mark.parametrize(
    ("make", "out", "back"),
    [(mha_pool, *pair) for pair in itertools.permutations(MHA_LAYOUTS, 2)]
    + [(mla_pool, *pair) for pair in itertools.permutations(MLA_LAYOUTS, 2)],
)
def test_what_one_layout_stored_another_loads(
    engine_of: Engines, make: Any, out: str, back: str
) -> None:
    keys, ours, theirs = names(3), engine_of(filled(make(out))), engine_of(make(back))
    assert ours.store(keys, 5, 6, 1) == [True] * 3
    assert theirs.load(keys, 0, 8, 3) == [True] * 3
    assert same(ours.pool, [5, 6, 1], theirs.pool, [0, 8, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_any_dtype_comes_back_and_none_hits_another_s(engine_of: Engines, dtype: Any) -> None:
    keys, ours = names(2), engine_of(filled(mha_pool("page_first", dtype=dtype)))
    assert ours.store(keys, 0, 1) == [True] * 2
    assert engine_of(mha_pool("page_first")).storage.batch_exists(keys) == 0
    theirs = engine_of(mha_pool("layer_first", dtype=dtype))
    assert theirs.load(keys, 2, 3) == [True] * 2
    drawn = ours.pool.kv_buffer[:, 0:8].permute(0, 2, 1, 3, 4)
    assert torch.equal(
        theirs.pool.kv_buffer[:, :, 8:16].view(torch.uint8), drawn.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize(("make", "layout"), LAYOUTS)
def test_the_older_interface_moves_the_same_blocks(
    engine_of: Engines, make: Any, layout: str
) -> None:
    """As the controller calls it without `interface_v1`: flat pages, one tensor a key."""
    keys, ours, theirs = names(3), engine_of(filled(make(layout))), engine_of(make(layout))
    pages = [ours.pool.get_data_page(page * 4) for page in (2, 5, 8)]
    assert ours.storage.batch_set(keys, pages) is True
    targets = [theirs.pool.get_dummy_flat_data_page() for _ in range(3)]
    found = theirs.storage.batch_get([*keys[:2], "0" * 64], targets)
    assert found[0] is targets[0] and found[1] is targets[1] and found[2] is None
    for page, flat in zip((2, 5), found[:2], strict=True):
        theirs.pool.set_from_flat_data_page(page * 4, flat)
    assert same(ours.pool, [2, 5], theirs.pool, [2, 5])
    assert theirs.load(keys, 3, 6, 9) == [True] * 3, "the two interfaces share blocks"
    assert same(ours.pool, [2, 5, 8], theirs.pool, [3, 6, 9])
    assert torch.equal(ours.storage.get(keys[0]).view(torch.uint8), pages[0].view(torch.uint8))
    assert ours.storage.exists(keys[0]) and not ours.storage.exists("f" * 64)
    assert ours.storage.set(keys[0], pages[0]) and ours.storage.get("f" * 64) is None


def test_two_ranks_hold_their_own_heads_and_never_each_other_s(engine_of: Engines) -> None:
    keys = names(3)
    ranks = [
        engine_of(filled(mha_pool("page_first", heads=HEADS // 2), seed), tp=(seed, 2))
        for seed in (0, 1)
    ]
    assert ranks[0].store(keys, 0, 1, 2) == [True] * 3
    assert ranks[1].storage.batch_exists(keys) == 0, "a rank stores, and the other has nothing yet"
    assert ranks[1].store(keys[:2], 4, 5) == [True] * 2
    assert [one.storage.batch_exists(keys) for one in ranks] == [3, 2], "SGLang takes the least"
    for rank, pages in zip(ranks, ([0, 1], [4, 5]), strict=True):
        again = engine_of(mha_pool("page_head", heads=HEADS // 2), tp=rank.config_tp)
        assert again.load(keys[:2], 8, 9) == [True] * 2
        assert same(rank.pool, pages, again.pool, [8, 9])
    whole = engine_of(mha_pool("page_first"))
    assert whole.storage.batch_exists(keys) == 0, "nor does an engine of another size"


def test_a_latent_that_rank_0_stored_is_every_rank_s(engine_of: Engines) -> None:
    keys = names(2)
    ranks = [engine_of(filled(mla_pool("page_first"), seed), tp=(seed, 2)) for seed in (0, 1)]
    assert [one.config.is_storage_writer for one in ranks] == [True, False], "as SGLang decides"
    assert ranks[0].store(keys, 0, 1) == [True] * 2
    assert ranks[1].load(keys, 6, 7) == [True] * 2
    assert same(ranks[0].pool, [0, 1], ranks[1].pool, [6, 7])


def test_batch_exists_counts_leading_hits_and_a_hole_ends_it(engine_of: Engines) -> None:
    keys, ours = names(5), engine_of(filled(mha_pool("page_first")))
    ours.store([keys[0], keys[1], keys[3]], 0, 1, 3)
    assert ours.storage.batch_exists(keys) == 2
    assert ours.storage.batch_exists(keys[2:]) == 0
    assert ours.storage.batch_exists(keys[3:]) == 1
    assert ours.storage.batch_exists([]) == 0
    theirs = engine_of(mha_pool("page_first"))
    assert theirs.load(keys, 0, 1, 2, 3, 4) == [True, True, False, True, False]
    assert same(ours.pool, [0, 1, 3], theirs.pool, [0, 1, 3])
    assert ours.store(keys, 0, 1, 2, 3, 4) == [True] * 5, "what is there already counts as stored"
    assert ours.storage.batch_exists(keys) == 5


def test_a_damaged_page_is_not_loaded_and_is_a_miss_from_then_on(
    engine_of: Engines, shared_node: NodeProcess
) -> None:
    keys, ours = names(3), engine_of(filled(mha_pool("page_first"), seed=99))
    assert ours.store(keys, 0, 1, 2) == [True] * 3
    # In slot order a block begins with K of the first token of head 0 of layer 0.
    wanted = bytes(ours.pool.kv_buffer[0, 4, 0, 0].view(torch.uint8).tolist())
    with mapped(shared_node.caller()) as arena:
        at = bytes(arena.view).index(wanted)
        arena.bytes[at] ^= 1
        theirs = engine_of(mha_pool("page_first"))
        assert theirs.storage.batch_exists(keys) == 3, "nobody has looked yet"
        assert theirs.load(keys, 0, 1, 2) == [True, False, True]
        assert same(ours.pool, [0, 2], theirs.pool, [0, 2])
        assert theirs.storage.batch_exists(keys) == 1
        assert ours.store(keys, 0, 1, 2) == [True] * 3, "and it can be stored again"
        assert theirs.load(keys, 0, 1, 2) == [True] * 3


def test_slots_that_are_not_whole_pages_are_neither_loaded_nor_stored(engine_of: Engines) -> None:
    ours = engine_of(filled(mha_pool("page_first")))
    for slots in (torch.arange(1, 5), torch.tensor([0, 1, 3, 2]), torch.arange(7)):
        assert ours.storage.batch_set_v1(names(1), slots) == [False]
        assert ours.storage.batch_get_v1(names(1), slots) == [False]
    two = names(2)
    assert ours.storage.batch_set_v1(two, torch.arange(4)) == [False, False], "and one is missing"


def test_what_was_moved_is_counted_where_sglang_wants_to_know(engine_of: Engines) -> None:
    keys, quiet = names(2), engine_of(filled(mha_pool("page_first")))
    quiet.store(keys, 0, 1)
    assert quiet.storage.get_stats() is None
    ours = engine_of(filled(mha_pool("page_first")), metrics=True)
    ours.store(keys, 0, 1)
    ours.load([*keys, "0" * 64], 2, 3, 4)
    told = ours.storage.get_stats()
    assert (told.backup_pgs, told.prefetch_pgs) == ([2], [2])
    assert told.backup_bandwidth[0] > 0 and told.prefetch_bandwidth[0] > 0
    assert ours.storage.get_stats().prefetch_pgs == [], "each call is told once"
