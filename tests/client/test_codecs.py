"""A coded namespace on a real node: what comes back is the decoded code of what was put, bit for
bit, by whichever way it went; and namespaces of two codecs have nothing in common."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import numpy as np
import pytest

from kvstore.client import Client, FixedAddress, Match, Miss
from kvstore.errors import Invalid, OutOfRange, SpecMismatch
from kvstore.layout import Fragment
from kvstore.spec import KVSpec, difference
from tests.client.coded import coded_spec, come_back, payloads, sequence
from tests.client.kv import Cache
from tests.nodes import put_parts, running

Clients = Callable[..., Client]
CODECS = ("fp8", "int8")
TOKENS = 61  # two blocks, and a short one that ends within a token group


def filled(spec: KVSpec, truth: np.ndarray, **layout: object) -> Cache:
    cache = Cache(spec, truth.shape[2], kind="torch", **layout)  # type: ignore[arg-type]
    cache.fill(truth)
    return cache


def empty(spec: KVSpec, **layout: object) -> Cache:
    return Cache(spec, TOKENS, kind="torch", **layout)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("dtype", "parts", "out", "back", "pages"),
    [
        ("bfloat16", 2, "phtkd", "pthkd", (16, 7)),
        ("float16", 2, "kpthd", "thkd", (48, 1)),
        ("float32", 2, "pthkd", "kphtd", (1, 64)),
        ("bfloat16", 1, "pthd", "phtd", (24, 16)),
    ],
)
def test_a_sequence_comes_back_decoded_in_any_layout_and_nothing_else_is_touched(
    client_of: Clients,
    codec: str,
    dtype: str,
    parts: int,
    out: str,
    back: str,
    pages: tuple[int, int],
) -> None:
    spec = coded_spec(f"coded-{codec}-{dtype}-{parts}", codec, dtype=dtype, parts=parts)
    client, truth = client_of(spec), sequence(spec, TOKENS, 1)
    chain = client.chain(range(TOKENS))
    source = filled(spec, truth, axes=out, page_tokens=pages[0])
    assert client.put(chain, source.memory(client)) == 3
    target = empty(spec, axes=back, page_tokens=pages[1], seed=5)
    assert client.get(chain, target.memory(client)) == Match(3, TOKENS, None)
    assert target.holds(come_back(spec, truth)) and target.untouched(0, TOKENS)
    assert source.holds(truth), "the engine's own KV stays as it computed it"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("ranks", "readers"), [(1, 4), (4, 2), (2, 1), (4, 1)])
def test_ranks_of_any_number_write_what_ranks_of_any_other_read(
    client_of: Clients, codec: str, ranks: int, readers: int
) -> None:
    spec = coded_spec(f"ranks-{codec}-{ranks}-{readers}", codec)
    truth, client = sequence(spec, TOKENS, ranks), client_of(spec)
    chain, heads = client.chain(range(TOKENS)), spec.groups[0].kv_heads
    writers = []
    for rank in range(ranks):
        mine = (rank * heads // ranks, heads // ranks)
        cache = filled(spec, truth, heads=mine, seed=rank)
        writers.append(client.writer(chain, fragment=Fragment(0, 3, *mine), writer_group="g"))
        writers[-1].put(cache.memory(client))
    sealed = [writer.seal() for writer in writers]
    assert sealed[-1] == ["SEALED"] * 3
    for rank in range(readers):
        mine = (rank * heads // readers, heads // readers)
        for layers in ((0, 3), (1, 1)):
            cache = empty(spec, heads=mine, layers=layers, axes="kpthd")
            assert client.get(chain, cache.memory(client)).tokens == TOKENS
            assert cache.holds(come_back(spec, truth)) and cache.untouched(0, TOKENS)


@pytest.mark.parametrize("codec", CODECS)
def test_a_reader_follows_a_coded_block_layer_by_layer(client_of: Clients, codec: str) -> None:
    spec = coded_spec(f"follow-{codec}", codec)
    prefill, decode = client_of(spec), client_of(spec)
    truth, chain = sequence(spec, TOKENS, 3), prefill.chain(range(TOKENS))
    source, target = filled(spec, truth), empty(spec, axes="pthkd", page_tokens=7, seed=2)
    with prefill.writer(chain, hand_off=True) as writer:
        memory = target.memory(decode)
        with decode.reader(chain, memory, hand_offs=writer.hand_offs) as reader:
            for layer, tensor in enumerate(source.tensors):
                assert not reader.poll()
                assert reader.layers == layer
                table = source.block_table
                writer.put_layer(layer, tensor, source.axes, block_table=table)
            assert reader.wait(20.0)
            assert (reader.tokens, reader.miss) == (TOKENS, None)
            assert reader.bytes_loaded == sum(map(len, payloads(spec, truth)))
        writer.seal()
    assert target.holds(come_back(spec, truth)) and target.untouched(0, TOKENS)


@pytest.mark.usefixtures("mapped")
def test_a_pinned_coded_block_is_verified_and_has_no_views(client_of: Clients) -> None:
    spec = coded_spec("pinned", "fp8")
    client = client_of(spec)
    chain = client.chain(range(TOKENS))
    client.put(chain, filled(spec, sequence(spec, TOKENS, 4)).memory(client))
    with client.pin(chain) as pinned:
        assert (pinned.blocks, pinned.miss) == (3, None)
        assert pinned.confirm() == 3
        with pytest.raises(Invalid, match="keeps KV as fp8: there are no views; use get"):
            pinned.views()


def test_namespaces_of_two_codecs_have_nothing_in_common(client_of: Clients) -> None:
    specs = [coded_spec("apart", codec) for codec in ("none", *CODECS)]
    clients = [client_of(spec) for spec in specs]
    assert len({spec.digest for spec in specs}) == 3
    truth = sequence(specs[1], TOKENS, 6)
    chains = [client.chain(range(TOKENS)) for client in clients]
    assert len({hash for chain in chains for hash in chain.hashes}) == 9
    clients[1].put(chains[1], filled(specs[1], truth).memory(clients[1]))
    for client, chain in ((clients[0], chains[0]), (clients[2], chains[2])):
        assert client.match(chain) == Match(0, 0, Miss.ABSENT)
        assert client.match(chains[1]) == Match(0, 0, Miss.ABSENT)
    assert difference(specs[1], specs[2]) == "codec is 'fp8' there and 'int8' here"


@pytest.mark.parametrize("codec", CODECS)
def test_streams_carry_the_coded_bytes_and_a_restart_brings_them_back(codec: str) -> None:
    spec = coded_spec(f"streams-{codec}", codec)
    truth = sequence(spec, TOKENS, 7)
    data = payloads(spec, truth)
    with running(ssd="64MiB") as node:
        caller = node.caller()
        caller.register(spec)
        with Client(FixedAddress(node.address), spec, deadline_seconds=20.0) as client:
            chain = client.chain(range(TOKENS))
            wrong = put_parts(chain, data, spec, dtype="bfloat16")
            with pytest.raises(grpc.RpcError, match=f"dtype is bfloat16; .* stores {codec}"):
                caller.kv.Put(wrong, timeout=20)
            parts = put_parts(chain, data, spec, dtype=codec, durable=True)
            assert len(caller.kv.Put(parts, timeout=20).stored) == 3
            assert caller.get(chain, spec) == ([0, 0, 0], data)
            target = empty(spec)
            assert client.get(chain, target.memory(client)) == Match(3, TOKENS, None)
            assert target.holds(come_back(spec, truth))
        node.kill()
        node.start()
        with Client.at(node.address, spec, deadline_seconds=20.0) as client:
            target = empty(spec, axes="pthkd")
            assert client.get(chain, target.memory(client)) == Match(3, TOKENS, None)
            assert target.holds(come_back(spec, truth))
            other = client.chain(range(1, TOKENS + 1))
            assert client.put(other, filled(spec, truth).memory(client)) == 3
        assert node.caller().get(other, spec) == ([0, 0, 0], data)


def test_a_namespace_of_another_codec_cannot_take_a_namespaces_name(client_of: Clients) -> None:
    taken, other = coded_spec("taken", "fp8"), coded_spec("taken", "int8")
    client = client_of(other)
    object.__setattr__(client.space, "digest", taken.digest)
    with pytest.raises(SpecMismatch):
        client.register()


@pytest.mark.parametrize("codec", ("none", *CODECS))
def test_what_is_recoded_here_is_what_would_be_loaded(client_of: Clients, codec: str) -> None:
    spec = coded_spec("recoded", codec, block_tokens=20)
    client, truth = client_of(spec), sequence(spec, TOKENS, 8)
    cache = filled(spec, truth, heads=(1, 2), axes="pthkd", page_tokens=7)
    client.recode(cache.memory(client), 3)
    after = truth.copy()
    if codec != "none":
        after[:, :, :60] = come_back(spec, truth)[:, :, :60]
    assert cache.holds(after)
    with pytest.raises(OutOfRange):
        client.recode(cache.memory(client), 4)
