"""A call that cannot be right is refused by name, and before the node is asked anything."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.client import Chain, Client, Match, Memory, Miss, Writer
from kvstore.client.connection import Connection
from kvstore.errors import (
    AlreadyWritten,
    Incomplete,
    Invalid,
    KVStoreError,
    OutOfRange,
    SessionEnded,
    WindowClosed,
)
from kvstore.layout import Fragment
from tests.client.kv import Cache, spec_of, truth_of

# 3 layers, 4 heads of 16 float32, blocks of 8 tokens; a sequence of 4 blocks in pages of 16.
TOKENS = 30
SPEC = spec_of("refusals")


@pytest.fixture
def client(client_of: Callable[..., Client]) -> Client:
    return client_of(SPEC)


@pytest.fixture
def cache() -> Cache:
    made = Cache(SPEC, TOKENS)
    made.fill(truth_of(SPEC, TOKENS, 1))
    return made


@pytest.fixture
def writer(client: Client, request: pytest.FixtureRequest) -> Iterator[Writer]:
    number = zlib.crc32(request.node.name.encode()) % 1_000_000
    with client.writer(client.chain(range(number, number + TOKENS))) as made:
        yield made


@pytest.fixture
def silent(client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client whose node must not be asked."""

    def asked(*_: Any) -> None:
        pytest.fail("the node was asked")

    client.connection.link()
    monkeypatch.setattr(Connection, "call", asked)
    return client


ARRAY = np.zeros((4, 4, 16, 2, 16), np.float32)  # phtkd
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("dtype", {"tensors": [ARRAY.astype(np.float64)]}, "dtype is float64; .* stores float32"),
    ("byte order", {"tensors": [ARRAY.astype(">f4")]}, "dtype is >f4; .* stores float32"),
    ("torch dtype", {"tensors": [torch.zeros(4, 4, 16, 2, 16).bfloat16()]}, "dtype is bfloat16"),
    ("head dim", {"tensors": [ARRAY[..., :8].copy()]}, "head dim 8: the namespace has 16"),
    ("transposed", {"tensors": [ARRAY.swapaxes(2, 4)]}, r"not contiguous.*\.contiguous\(\)"),
    ("every second", {"tensors": [np.zeros((4, 4, 16, 2, 32), "f4")[..., ::2]]}, "not contiguous"),
    ("no table", {"block_table": None}, "block_table, the sequence's pages"),
    ("table of floats", {"block_table": [0.0, 1.0]}, "block_table is 1-dimensional float64"),
    ("two tables", {"block_table": [[0, 1]]}, "block_table is 2-dimensional"),
    ("axes misspelled", {"axes": "phtvd"}, "axes 'phtvd': name each of dhkt once"),
    ("axis twice", {"axes": "phtkk"}, "axes 'phtkk'"),
    ("axis missing", {"axes": "phtd"}, "axes 'phtd'"),
    ("axes too few", {"axes": "htkd"}, r"shape \(4, 4, 16, 2, 16\); axes 'htkd' name 4"),
    ("three parts", {"tensors": [np.zeros((4, 4, 16, 3, 16), "f4")]}, "axis k has 3 entries"),
    ("empty", {"tensors": [ARRAY[:0]]}, "the tensor is empty"),
    ("no tensors", {"tensors": []}, "no tensors"),
    ("a list", {"tensors": [[1.0]]}, "tensors.0. is a list; a numpy array or a torch tensor"),
    ("two shapes", {"tensors": [ARRAY, ARRAY[:2]]}, r"tensors\[1\] differs"),
    ("four layers", {"tensors": [ARRAY] * 4}, "layer out of range, the block has layers 0..2"),
    ("layer -1", {"layer_first": -1}, "layer out of range"),
    ("head 1 on", {"head_first": 1}, "head out of range, the block has heads 0..3"),
    ("head -1", {"head_first": -1}, "head out of range"),
    ("on a device", {"tensors": [torch.zeros(4, 4, 16, 2, 16, device="meta")]}, "is on meta"),
]


@pytest.mark.parametrize(("change", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_memory_that_is_not_as_described(
    silent: Client, change: dict[str, Any], message: str
) -> None:
    right: dict[str, Any] = {"tensors": [ARRAY], "axes": "phtkd", "block_table": [0, 1]}
    assert isinstance(silent.memory(**right), Memory)
    with pytest.raises(Invalid, match=message):
        silent.memory(**right | change)


def test_memory_without_room_for_the_sequence(silent: Client, cache: Cache) -> None:
    chain = silent.chain(range(TOKENS))
    short = silent.memory(cache.tensors, "phtkd", cache.block_table[:1])  # type: ignore[index]
    with pytest.raises(OutOfRange, match=r"30 tokens; 1 pages of 16.* hold 16"):
        silent.get(chain, short)
    pages = len(cache.tensors[0])
    beyond = silent.memory(cache.tensors, "phtkd", [0, pages])
    with pytest.raises(OutOfRange, match=rf"block_table\[1\] is {pages}; .* 0..{pages - 1}"):
        silent.get(chain, beyond)
    with pytest.raises(OutOfRange, match=r"block_table\[0\] is -1"):
        silent.get(chain, silent.memory(cache.tensors, "phtkd", [-1, 1]))
    with pytest.raises(OutOfRange, match=r"the memory holds layers 0..2 of heads 0..1"):
        silent.reader(chain, Cache(SPEC, TOKENS, heads=(0, 2)).memory(silent), fragment=WHOLE)
    with pytest.raises(OutOfRange, match=r"the memory holds layers 1..2"):
        silent.reader(chain, Cache(SPEC, TOKENS, layers=(1, 2)).memory(silent), fragment=WHOLE)


WHOLE = Fragment(0, 3, 0, 4)


def test_pages_that_no_wanted_block_lies_in_may_be_anything(client: Client, cache: Cache) -> None:
    table = [-1, *cache.block_table]  # type: ignore[misc]
    chain = client.chain(range(500, 546))  # a page, and what the cache holds
    memory = client.memory(cache.tensors, "phtkd", table)
    assert client.put(chain, memory, first=2) == 4
    with pytest.raises(OutOfRange, match=r"block_table\[0\] is -1"):
        client.put(chain, memory)


def test_memory_that_may_not_be_written_is_not_loaded_into(silent: Client, cache: Cache) -> None:
    for tensor in cache.tensors:
        tensor.flags.writeable = False
    with pytest.raises(Invalid, match="read-only"):
        silent.get(silent.chain(range(TOKENS)), cache.memory(silent))


@pytest.mark.parametrize("first", [-1, 5])
def test_a_first_block_outside_the_chain(silent: Client, cache: Cache, first: int) -> None:
    chain, memory = silent.chain(range(TOKENS)), cache.memory(silent)
    for call in (silent.get, silent.put):
        with pytest.raises(Invalid, match=f"first {first}: the chain has 4 blocks"):
            call(chain, memory, first=first)


def test_a_chain_of_other_blocks_and_a_group_that_is_not_there(
    silent: Client, cache: Cache
) -> None:
    chain = silent.chain(range(TOKENS))
    other = Chain(chain.hashes, chain.tokens, 16)
    with pytest.raises(Invalid, match="blocks of 16 tokens, this group 8"):
        silent.put(other, cache.memory(silent))
    with pytest.raises(Invalid, match="1 hand_offs for 4 blocks"):
        silent.reader(chain, cache.memory(silent), hand_offs=[b"x"])
    for group in (-1, 1):
        with pytest.raises(Invalid, match=r"the spec has groups 0..0"):
            Client(silent.connection._locator, SPEC, group=group)


def test_a_key_that_was_given_to_two_lengths_is_absent(client: Client, cache: Cache) -> None:
    chain = client.chain(range(600, 600 + TOKENS))
    client.put(chain, cache.memory(client))
    shorter = Chain(chain.hashes[:2], (8, 5), 8)
    target = Cache(SPEC, TOKENS)
    assert client.get(shorter, target.memory(client)) == Match(1, 8, Miss.ABSENT)
    assert target.untouched(0, 8)


def put(writer: Writer, cache: Cache, layer: int, **options: Any) -> None:
    options = {"block_table": cache.block_table} | options
    writer.put_layer(layer, options.pop("tensor", cache.tensors[0]), "phtkd", **options)


def test_a_layer_or_a_head_outside_the_window(client: Client, cache: Cache) -> None:
    chain = client.chain(range(900, 930))
    with client.writer(chain, fragment=Fragment(1, 2, 0, 2)) as writer:
        half = cache.tensors[0][:, :2]
        for layer in (3, -1):
            with pytest.raises(OutOfRange, match="layer out of range"):
                put(writer, cache, layer, tensor=half)
        with pytest.raises(Invalid, match=r"outside the window's layers 1..2 of heads 0..1"):
            put(writer, cache, 0, tensor=half)
        with pytest.raises(Invalid, match="outside the window's"):
            put(writer, cache, 1, tensor=half, heads=1)
        with pytest.raises(OutOfRange, match="head out of range"):
            put(writer, cache, 1, tensor=half, heads=3)
        with pytest.raises(Invalid, match="outside the window's"):
            put(writer, cache, 1)  # all four heads
        with pytest.raises(Invalid, match=r"blocks 0\.\.5: the window has 0\.\.4"):
            put(writer, cache, 1, tensor=half, blocks=(0, 5))


def test_a_strip_is_stored_once_however_its_heads_are_cut(writer: Writer, cache: Cache) -> None:
    left, right = cache.tensors[0][:, :2], cache.tensors[0][:, 2:]
    put(writer, cache, 0)
    put(writer, cache, 1, tensor=left)
    for again in (
        {},
        {"tensor": left},
        {"tensor": right, "heads": 2},
        {"tensor": left, "heads": 1},
    ):
        with pytest.raises(AlreadyWritten, match="written once"):
            put(writer, cache, 0, **again)
    with pytest.raises(AlreadyWritten):
        put(writer, cache, 1, tensor=left)
    with pytest.raises(AlreadyWritten):
        put(writer, cache, 1)
    put(writer, cache, 1, tensor=right, heads=2)
    put(writer, cache, 2, blocks=(0, 3))
    with pytest.raises(AlreadyWritten):
        put(writer, cache, 2)
    put(writer, cache, 2, blocks=(3, 4))
    assert writer.seal() == ["SEALED"] * 4


def test_a_seal_before_all_layers_names_what_is_missing(writer: Writer, cache: Cache) -> None:
    put(writer, cache, 0)
    put(writer, cache, 1, tensor=cache.tensors[0][:, :3])
    put(writer, cache, 2)
    with pytest.raises(Incomplete, match=r"layers 1\.\.1 of heads 3\.\.3 not written"):
        writer.seal()
    put(writer, cache, 1, tensor=cache.tensors[0][:, 3:], heads=3)
    assert writer.seal() == ["SEALED"] * 4
    assert writer.seal() == [], "nothing is left to seal"


def test_a_closed_client_says_so_to_who_writes_and_is_a_miss_to_who_reads(
    client_of: Callable[..., Client], cache: Cache
) -> None:
    client = client_of(SPEC)
    chain, memory = client.chain(range(700, 730)), cache.memory(client)
    writer = client.writer(chain)
    client.close()
    client.close()
    with pytest.raises(SessionEnded, match="the client is closed"):
        client.put(chain, memory)
    with pytest.raises(WindowClosed):
        writer.put(memory)
    with pytest.raises(WindowClosed):
        writer.seal()
    writer.abort()
    assert client.match(chain).miss == client.get(chain, memory).miss == "unreachable"
    for call in (lambda: client.pin(chain), lambda: client.remove(chain)):
        with pytest.raises(KVStoreError, match="the client is closed"):
            call()


class Producer:
    """Writes the layer only when somebody waits for it."""

    def __init__(self, tensor: np.ndarray, wanted: np.ndarray) -> None:
        self._tensor, self._wanted = tensor, wanted
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        self._tensor[:] = self._wanted


def test_a_layer_is_read_only_after_its_event(client: Client, cache: Cache) -> None:
    chain = client.chain(range(2_000, 2_000 + TOKENS))
    with client.writer(chain) as writer:
        for layer, tensor in enumerate(cache.tensors):
            wanted = tensor.copy()
            tensor[:] = 0
            event = Producer(tensor, wanted)
            put(writer, cache, layer, tensor=tensor, after=event)
            assert event.waits == 1
        writer.seal()
    target = Cache(SPEC, TOKENS, seed=8)
    assert client.get(chain, target.memory(client)).tokens == TOKENS
    assert target.holds(truth_of(SPEC, TOKENS, 1))


@pytest.mark.parametrize("threads", [0, -1])
def test_a_number_of_threads_that_copies_nothing(threads: int) -> None:
    with pytest.raises(Invalid, match=f"copy_threads {threads}: at least 1, or None"):
        Client.at("127.0.0.1:1", spec_of("threads"), copy_threads=threads)
