"""What is put comes back byte for byte, whatever the layout, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvstore.client import Chain, Client, KVGroup, KVSpec, Match, Miss
from kvstore.client import space as space_module
from kvstore.errors import Invalid
from kvstore.layout import Fragment
from tests.client.kv import Cache, spec_of, truth_of

Clients = Callable[..., Client]

# dtype, kind, parts, axes of writer and reader, block tokens, page tokens of both, tokens
LAYOUTS = [
    ("float32", "numpy", 2, "phtkd", "pthkd", 64, 16, 64, 200),
    ("float32", "torch", 2, "pthkd", "kpthd", 64, 48, 100, 129),
    ("bfloat16", "torch", 2, "kpthd", "phtkd", 64, 100, 48, 256),
    ("bfloat16", "torch", 2, "kphtd", "thkd", 16, 16, 16, 77),
    ("float16", "numpy", 2, "thkd", "phtkd", 64, 64, 16, 100),
    ("float16", "torch", 2, "htkd", "khtd", 8, 1, 1, 31),
    ("int8", "numpy", 2, "tphkd", "hptkd", 16, 4, 128, 130),
    ("uint8", "torch", 2, "pkthd", "hkptd", 16, 7, 5, 61),
    ("bfloat16", "torch", 1, "pthd", "thd", 64, 16, 1, 150),
    ("uint8", "numpy", 1, "htd", "phtd", 64, 1, 64, 65),
]


@pytest.mark.parametrize("case", range(len(LAYOUTS)))
def test_a_sequence_comes_back_in_any_layout_and_nothing_else_is_touched(
    client_of: Clients, case: int
) -> None:
    dtype, kind, parts, out, back, block, out_page, back_page, tokens = LAYOUTS[case]
    spec = spec_of(
        f"layout-{case}",
        dtype=dtype,
        parts=parts,
        block_tokens=block,
        kv_heads=1 if parts == 1 else 4,
        head_dim=576 if parts == 1 else 16,
    )
    client = client_of(spec)
    truth, chain = truth_of(spec, tokens, case), client.chain(range(tokens))
    ours = Cache(spec, tokens, axes=out, page_tokens=out_page, kind=kind, seed=case)
    ours.fill(truth)
    assert client.match(chain) == Match(0, 0, Miss.ABSENT)
    assert client.put(chain, ours.memory(client)) == len(chain) == -(-tokens // block)
    assert client.put(chain, ours.memory(client)) == 0, "it is stored once"
    assert ours.holds(truth), "the source is only read"
    assert client.match(chain) == Match(len(chain), tokens, None)
    theirs = Cache(spec, tokens, axes=back, page_tokens=back_page, kind=kind, seed=case + 1)
    assert client.get(chain, theirs.memory(client)) == Match(len(chain), tokens, None)
    assert theirs.holds(truth)
    assert theirs.untouched(0, tokens)


def test_a_get_from_the_middle_loads_only_what_was_asked_for(client_of: Clients) -> None:
    spec = spec_of("middle", block_tokens=8)
    client, tokens = client_of(spec), 30
    truth, chain = truth_of(spec, tokens, 1), client.chain(range(tokens))
    ours, theirs = Cache(spec, tokens), Cache(spec, tokens, page_tokens=5, seed=2)
    ours.fill(truth)
    client.put(chain, ours.memory(client))
    found = client.get(chain.between(0, 3), theirs.memory(client), first=2)
    assert found == Match(1, 8, None)
    assert theirs.holds(truth, 16, 24)
    assert theirs.untouched(16, 24)


def test_where_all_is_there_a_writer_has_nothing_to_write(client_of: Clients) -> None:
    spec = spec_of("all there", block_tokens=8)
    client, tokens = client_of(spec), 30
    ours, chain = Cache(spec, tokens), client.chain(range(tokens))
    memory = ours.memory(client)
    client.put(chain, memory)
    first = client.match(chain).blocks
    assert first == len(chain)
    with client.writer(chain, first=first, hand_off=True) as writer:
        assert (len(writer.granted), writer.hand_offs) == (0, ())
        writer.put_layer(0, ours.tensors[0], ours.axes, block_table=ours.block_table)
        writer.put(memory, Fragment(1, 2, 0, 4))
        assert writer.seal() == []
    assert client.put(chain, memory, first=first) == 0
    assert client.get(chain, memory, first=first) == Match(0, 0, None)


def test_a_memory_of_some_heads_and_layers_takes_that_part_of_each_block(
    client_of: Clients,
) -> None:
    spec = spec_of("part", layers=4)
    client, tokens = client_of(spec), 20
    truth, chain = truth_of(spec, tokens, 1), client.chain(range(tokens))
    ours = Cache(spec, tokens)
    ours.fill(truth)
    client.put(chain, ours.memory(client))
    for heads, layers in [((0, 2), (0, 4)), ((3, 1), (1, 2)), ((1, 2), (3, 1))]:
        theirs = Cache(spec, tokens, heads=heads, layers=layers, axes="pthkd")
        assert client.get(chain, theirs.memory(client)).blocks == len(chain)
        assert theirs.holds(truth) and theirs.untouched(0, tokens)


def test_what_is_removed_is_gone_with_all_that_came_after(client_of: Clients) -> None:
    spec = spec_of("remove")
    client, tokens = client_of(spec), 30
    chain, ours = client.chain(range(tokens)), Cache(spec, tokens)
    client.put(chain, ours.memory(client))
    assert client.remove(chain.between(1, 2)) == 1
    assert client.remove(chain.between(1, 2)) == 0
    assert client.match(chain) == Match(1, 8, Miss.REMOVED)
    assert client.get(chain, ours.memory(client)) == Match(1, 8, Miss.REMOVED)
    assert client.get(chain.between(2, 4), ours.memory(client)) == Match(0, 0, Miss.UNLISTED)
    assert client.put(chain, ours.memory(client)) == 1, "the rest is listed again"
    assert client.match(chain) == Match(4, tokens, None)


def test_the_empty_sequence_is_a_match_of_nothing(client_of: Clients) -> None:
    spec = spec_of("empty")
    client = client_of(spec)
    none, memory = client.chain([]), Cache(spec, 8).memory(client)
    assert client.put(none, memory) == client.remove(none) == 0
    assert client.match(none) == client.get(none, memory) == Match(0, 0, None)


def test_two_groups_of_one_namespace_do_not_see_each_other(client_of: Clients) -> None:
    groups = (KVGroup((0,), 2, 8, block_tokens=4), KVGroup((1, 2), 1, 32, block_tokens=8))
    spec = KVSpec("groups", "r1", "float32", groups)
    for number, group in enumerate(groups):
        client = client_of(spec, group=number)
        shape = (len(group.layers), 10, group.kv_heads, 2, group.head_dim)
        given = np.random.default_rng(number).random(shape, dtype=np.float32)
        back = np.zeros_like(given)
        chain = client.chain(range(10))
        assert client.match(chain).blocks == 0
        client.put(chain, client.memory(list(given), "thkd"))
        assert client.get(chain, client.memory(list(back), "thkd")).tokens == 10
        assert np.array_equal(given, back)


def long_chain_round_trip(client: Client, blocks: int) -> None:
    """One token a block, one strip: as many blocks as it takes."""
    rng = np.random.default_rng(blocks)
    given = rng.integers(0, 256, (blocks, 1, 2, 4), dtype=np.uint8)
    chain = client.chain(rng.integers(0, 2**32, blocks))
    memory = client.memory([given], "thkd")
    with client.writer(chain, hand_off=True) as writer:
        assert len(writer.hand_offs) == blocks and writer.granted.all()
        writer.put(memory)
        follower = np.zeros_like(given)
        target = client.memory([follower], "thkd")
        with client.reader(chain, target, hand_offs=writer.hand_offs) as reader:
            assert reader.poll() and reader.blocks == blocks and reader.sealed_tokens == 0
        assert np.array_equal(follower, given)
        assert writer.seal() == ["SEALED"] * blocks
    assert client.match(chain) == Match(blocks, blocks, None)
    back = np.zeros_like(given)
    assert client.get(chain, client.memory([back], "thkd")) == Match(blocks, blocks, None)
    assert np.array_equal(back, given)
    if client.connection.link().transport.name == "shm":
        with client.pin(chain) as pinned:
            assert pinned.blocks == pinned.confirm() == blocks
    assert client.remove(chain.between(blocks - 1, blocks)) == 1
    assert client.match(chain) == Match(blocks - 1, blocks - 1, Miss.REMOVED)
    back[:] = 0
    found = client.get(chain, client.memory([back], "thkd"))
    assert found == Match(blocks - 1, blocks - 1, Miss.REMOVED)
    assert client.remove(chain.between(0, 1)) == 1
    found = client.get(chain.between(blocks - 2, blocks - 1), client.memory([back], "thkd"))
    assert found.miss is Miss.UNLISTED, "each block knows the one before it"
    assert client.remove(chain) == blocks - 2


SMALL = {"layers": 1, "kv_heads": 1, "head_dim": 4, "block_tokens": 1, "dtype": "uint8"}


def test_a_chain_too_long_for_one_call_goes_in_several(client_of: Clients) -> None:
    long_chain_round_trip(client_of(spec_of("long", **SMALL)), space_module.RPC_KEYS_MAX + 3)


@pytest.mark.parametrize("blocks", [6, 7, 8, 14, 15])
def test_the_seams_between_calls_leave_nothing_out(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    monkeypatch.setattr(space_module, "RPC_KEYS_MAX", 7)
    long_chain_round_trip(client_of(spec_of(f"seams-{blocks}", **SMALL)), blocks)


def test_a_call_refused_half_way_leaves_no_window_behind(
    client_of: Clients,
    monkeypatch: pytest.MonkeyPatch,
    stats_of: Callable[[Client], Any],
) -> None:
    monkeypatch.setattr(space_module, "RPC_KEYS_MAX", 2)
    spec = spec_of("half")
    client = client_of(spec)
    chain = client.chain(range(40))
    bad = Chain((*chain.hashes[:3], b"short"), (8,) * 4, 8)
    with pytest.raises(Invalid, match=r"hashes\[1\] is 5 bytes; a block hash has 32"):
        client.writer(bad)
    assert stats_of(client).windows == 0
    assert client.match(chain).miss is Miss.ABSENT
