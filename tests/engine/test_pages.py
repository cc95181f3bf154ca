"""Pages are owned once or free once, whatever is allocated and released."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.engine.cache import K, PagedKV, V
from kvstore.engine.config import ModelConfig
from kvstore.engine.pages import PageAllocator
from kvstore.errors import Invalid, InvariantError

CONFIG = ModelConfig("LlamaForCausalLM", 64, 96, 2, 4, 2, 16, 100, 512, 1e-6)


@settings(max_examples=100, deadline=None)
@given(
    pages=st.integers(1, 40),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 15)), max_size=60),
)
def test_no_page_is_lost_or_shared(pages: int, moves: list[tuple[int, int]]) -> None:
    allocator, owned = PageAllocator(pages), dict[str, int]()
    for who, count in moves:
        owner = f"s{who}"
        if owner in owned and count % 2:
            before = allocator.table(owner).tolist()
            table = allocator.grow(owner, count)
            assert (table is None) == (count > pages - sum(owned.values()))
            if table is not None:
                assert table.dtype == np.int32 and table.tolist()[: len(before)] == before
                owned[owner] += count
            assert len(allocator.table(owner)) == owned[owner]
        elif owner in owned:
            allocator.release(owner)
            del owned[owner]
        else:
            table = allocator.allocate(owner, count)
            assert (table is None) == (count > pages - sum(owned.values()))
            if table is not None:
                assert table.dtype == np.int32 and len(table) == count
                owned[owner] = count
        allocator.check()
        assert allocator.free == pages - sum(owned.values())
        held = [page for one in owned for page in allocator.table(one).tolist()]
        assert len(held) == len(set(held)) and set(held) <= set(range(pages))


def test_a_full_cache_answers_none_and_takes_nothing() -> None:
    allocator = PageAllocator(4)
    assert allocator.allocate("a", 3) is not None
    assert allocator.allocate("b", 2) is None
    assert allocator.free == 1


def test_pages_are_not_released_twice_nor_allocated_twice() -> None:
    allocator = PageAllocator(4)
    with pytest.raises(Invalid, match="a has no pages to add to"):
        allocator.grow("a", 1)
    allocator.allocate("a", 1)
    with pytest.raises(Invalid, match="at least 1 is meant"):
        allocator.grow("a", 0)
    with pytest.raises(Invalid, match="a has pages already"):
        allocator.allocate("a", 1)
    allocator.release("a")
    with pytest.raises(Invalid, match="no pages to release"):
        allocator.release("a")


def test_a_block_table_cannot_be_written_by_those_it_is_shown_to() -> None:
    table = PageAllocator(4).allocate("a", 2)
    assert table is not None
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 3


def test_check_finds_a_page_that_is_both_free_and_owned() -> None:
    allocator = PageAllocator(4)
    table = allocator.allocate("a", 2)
    assert table is not None
    allocator._free.append(int(table[0]))
    with pytest.raises(InvariantError, match=f"twice: \\[{table[0]}\\]"):
        allocator.check()


def test_room_is_counted_in_whole_pages() -> None:
    cache = PagedKV(CONFIG, pages=5, page_tokens=16)
    assert [cache.pages_for(tokens) for tokens in (1, 16, 17, 80)] == [1, 1, 2, 5]
    assert cache.allocate("a", 81) is None
    table = cache.allocate("a", 17)
    assert table is not None and len(table) == 2
    cache.release("a")
    cache.check()


def test_addresses_and_strides_lead_to_every_byte() -> None:
    cache = PagedKV(CONFIG, pages=5, page_tokens=16)
    for layer in cache.layers:
        assert layer.shape == (6, 2, 16, 2, 16) and not layer.any()
        layer.copy_(torch.rand_like(layer))
    s = cache.strides
    assert (s.page, s.head, s.token, s.part) == (4096, 2048, 128, 64)
    places = [(0, 0, 0, 0, K), (0, 4, 1, 15, V), (1, 2, 1, 7, K)]
    for index, page, head, token, part in places:
        at = cache.layer_addresses[index]
        at += page * s.page + head * s.head + token * s.token + part * s.part
        found = np.frombuffer(ctypes.string_at(at, s.part), dtype=np.float32)
        assert np.array_equal(found, cache.layers[index][page, head, token, part].numpy())


def test_what_is_written_token_by_token_is_gathered_in_token_order() -> None:
    cache = PagedKV(CONFIG, pages=5, page_tokens=16)
    pages = torch.tensor([4, 1, 3])
    positions = torch.randperm(40)
    kv = torch.rand(40, 2, 2, 16)
    cache.write(1, pages[positions // 16], positions % 16, kv[positions])
    gathered = cache.gather(1, pages)
    assert gathered.shape == (2, 2, 48, 16)
    assert torch.equal(gathered[:, :, :40], kv.permute(1, 2, 0, 3))
    assert not cache.layers[0].any()


def test_pages_for_which_there_is_no_room_are_refused_by_their_size() -> None:
    with pytest.raises(
        Invalid, match=r"pages of 10000000000000 tokens have \d+ bytes of KV, for which cpu"
    ):
        PagedKV(CONFIG, pages=1, page_tokens=10**13)
