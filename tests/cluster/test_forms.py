"""Blocks kept in a codec, and blocks under keys of the engine's own, read at another host.

writer ──▶ node a ──▶ node b ──▶ reader          in networks of their own, by certificate
"""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.client import Keyed, KVSpec, Match, Miss
from kvstore.wire.v1 import kv_pb2 as pb
from tests.client.coded import coded_spec, come_back, payloads, sequence
from tests.client.kv import Cache, spec_of, truth_of
from tests.cluster.apart import Apart, Clients, following
from tests.cluster.three import SOON_SECONDS
from tests.nodes import eventually

CODECS = ("fp8", "int8")
TOKENS = 61  # two blocks, and a short one that ends within a token group


def coded_cache(spec: KVSpec, **layout: Any) -> Cache:
    return Cache(spec, TOKENS, kind="torch", **layout)


@pytest.mark.parametrize("how", ["fetched", "followed"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_coded_block_is_the_same_bytes_at_both_hosts_and_decodes_alike(
    apart: Apart, client_at: Clients, codec: str, how: str
) -> None:
    spec = coded_spec(f"coded-{codec}-{how}", codec)
    there, here = client_at("a", spec), client_at("b", spec)
    truth, chain = sequence(spec, TOKENS, 1), there.chain(range(TOKENS))
    source, target = coded_cache(spec), coded_cache(spec, axes="kpthd", seed=5)
    source.fill(truth)
    if how == "fetched":
        assert there.put(chain, source.memory(there)) == 3
        eventually(lambda: here.get(chain, target.memory(here)).tokens == TOKENS, SOON_SECONDS)
    else:
        with (
            there.writer(chain, hand_off=True) as writer,
            following(here, chain, target.memory(here), writer) as reader,
        ):
            writer.put(source.memory(there))
            assert reader.wait(SOON_SECONDS) and reader.tokens == TOKENS
            writer.seal()
    assert target.holds(come_back(spec, truth)) and target.untouched(0, TOKENS)
    coded = payloads(spec, truth)
    assert apart.at["a"].get(chain, spec) == ([pb.HIT] * 3, coded)
    eventually(lambda: apart.at["b"].get(chain, spec) == ([pb.HIT] * 3, coded), SOON_SECONDS)


def test_a_block_is_not_found_at_another_host_by_a_namespace_of_another_codec(
    apart: Apart, client_at: Clients
) -> None:
    specs = [coded_spec("apart", codec) for codec in ("none", *CODECS)]
    truth = sequence(specs[1], TOKENS, 2)
    source, there = coded_cache(specs[1]), client_at("a", specs[1])
    source.fill(truth)
    chain = there.chain(range(TOKENS))
    there.put(chain, source.memory(there))
    fetched = apart.at["b"].counters()["fetched_blocks"]
    for spec in (specs[0], specs[2]):
        here, target = client_at("b", spec), coded_cache(spec)
        for asked in (here.chain(range(TOKENS)), chain):  # its own names, and the block's
            assert here.match(asked) == Match(0, 0, Miss.ABSENT)
            assert here.get(asked, target.memory(here)).blocks == 0
        assert target.untouched()
    assert apart.at["b"].counters()["fetched_blocks"] == fetched
    here, target = client_at("b", specs[1]), coded_cache(specs[1])
    eventually(lambda: here.get(chain, target.memory(here)).tokens == TOKENS, SOON_SECONDS)
    assert target.holds(come_back(specs[1], truth)), "it was there to be found"


def test_blocks_under_an_engines_own_keys_are_had_or_missed_each_by_itself(
    client_at: Clients,
) -> None:
    spec = spec_of("keyed")
    there, here = client_at("a", spec), client_at("b", spec)
    size, count = spec.groups[0].block_tokens, 6
    truth, source = truth_of(spec, count * size, 6), Cache(spec, count * size)
    source.fill(truth)
    keys = there.keyed([f"page-{i}" for i in range(count)])
    assert there.store_each(keys, source.memory(there)) == [True] * count
    assert there.remove(Keyed((keys.hashes[0], keys.hashes[3]), size)) == 2
    kept = [False, True, True, False, True, True]
    eventually(lambda: here.exists_each(keys) == kept, SOON_SECONDS)
    target = Cache(spec, count * size, axes="kpthd", seed=3)
    eventually(lambda: here.load_each(keys, target.memory(here)) == kept, SOON_SECONDS)
    for block, there_is in enumerate(kept):
        if there_is:
            assert target.holds(truth, block * size, (block + 1) * size)
