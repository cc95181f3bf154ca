"""`moonpool attach` beside two real servers: its reasons add up to what vLLM counts, and what it
says of a pool is what such a pool then does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.attach.attached import attached
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.server import Server, servers
from tests.nodes import NodeProcess

BLOCK, PAGES = 32, 56  # of vLLM: as small as its longest prompt allows
DRAM = "5MiB"
SLAB = "1MiB"
TOKEN_BYTES = 4 * 2 * 2 * 32 * 4  # of the model's KV: layers, K and V, heads, elements, bytes
POOL = ("--dram", DRAM, "--kv-bytes-per-token", str(TOKEN_BYTES))
CLIENTS = 4

Load: TypeAlias = list[tuple[list[int], int]]  # prompts, and how long their answers are


def load(seed: int, prefixes: int = 7, requests: int = 70) -> Load:
    """Prompts that share prefixes, some of them asked again, and how long their answers are."""
    dice = random.Random(seed)
    begins = [prompt(10_000 * seed + one, 64 * dice.randint(2, 5)) for one in range(prefixes)]
    found: Load = []
    for number in range(requests):
        if number % 9 == 8:
            found.append(found[dice.randrange(len(found))])
        else:
            tokens = begins[dice.randrange(prefixes)] + prompt(
                20_000 * seed + number, dice.randint(5, 120)
            )
            found.append((tokens, dice.choice([1, 4, 40])))
    return found


def play(asked: Load, some: Sequence[Server], at_once: int = 1) -> None:
    """Round-robin, by so many clients."""
    with ThreadPoolExecutor(at_once) as clients:
        said = [
            clients.submit(some[number % len(some)].complete, *one)
            for number, one in enumerate(asked)
        ]
        for one in said:
            one.result()


def counted(some: Sequence[Server], name: str) -> int:
    return round(sum(one.metrics()[f"vllm:{name}_total"] for one in some))


def prefill_seconds(some: Sequence[Server]) -> float:
    return sum(one.metrics()["vllm:request_prefill_time_seconds_sum"] for one in some)


@pytest.fixture
def small_node(home: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(home, dram=DRAM, slab=SLAB)
    try:
        yield node.start()
    finally:
        node.close()


def test_reasons_add_up_to_vllm_s_counters_and_the_gain_is_what_a_pool_then_brings(
    model: Callable[[str], Path], small_node: NodeProcess, tmp_path: Path
) -> None:
    folder, asked, crowded = model("llama"), load(1), load(2)
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps({"prompt_tokens": len(one)}) + "\n" for one, _ in asked))
    bare = [
        Server(folder, tmp_path / f"bare-{one}.log", pages=PAGES, publishes=True) for one in "ab"
    ]
    with (
        servers(*bare),
        attached(bare, *POOL) as inferring,
        attached(bare, *POOL, "--requests", str(log)) as knowing,
    ):
        play(asked, bare)
        inferred, known = inferring.report(), knowing.report()
        queries, hits = (counted(bare, f"prefix_cache_{what}") for what in ("queries", "hits"))
        prefill = prefill_seconds(bare)
        with attached(bare, *POOL) as beside:  # which knows from a replay what was before
            play(crowded, bare, CLIENTS)
            crowd = beside.report()
    assert sum(crowd["reasons"].values()) == crowd["asked"]["queries"] - crowd["asked"]["hits"]
    assert crowd["reasons"]["untold"] == 0 and not crowd["notes"]
    print(json.dumps(inferred), json.dumps(known), json.dumps(crowd), sep="\n")
    for said in (inferred, known):
        assert (said["asked"]["queries"], said["asked"]["hits"]) == (queries, hits)
        assert sum(said["reasons"].values()) == queries - hits
        assert said["reasons"]["untold"] == 0
    # What is true of the load, whatever anybody says.
    whole = {tuple(one[:end]) for one, _ in asked for end in range(BLOCK, len(one) + 1, BLOCK)}
    why = known["reasons"]
    assert known["exact"] and why["short"] == sum(len(one) % BLOCK for one, _ in asked)
    assert why["evicted"] > 0 and why["elsewhere"] > 0
    # Which single blocks are of answers is a guess, and some of these had been computed before.
    assert why["never"] == pytest.approx(BLOCK * len(whole), rel=0.05)
    for name, tokens in inferred["reasons"].items():
        assert abs(tokens - why[name]) < 0.05 * (queries - hits)

    pooled = [
        Server(
            *(folder, tmp_path / f"pooled-{one}.log"),
            node=small_node.address,
            pages=PAGES,
            publishes=True,
        )
        for one in "ab"
    ]
    before = tmp_path / "before.json"
    before.write_text(json.dumps(inferred))
    with servers(*pooled), attached(pooled, *POOL, "--before", str(before)) as beside:
        play(asked, pooled)
        again = beside.report()
        prefill -= prefill_seconds(pooled)
        found = counted(pooled, "external_prefix_cache_hits")
        play(crowded, pooled, CLIENTS)
        found_crowded = counted(pooled, "external_prefix_cache_hits") - found
    print(json.dumps(again), found, found_crowded, sep="\n")
    predicted, realised = again["compared"]["predicted"], again["compared"]["realised"]
    assert (predicted["tokens"], realised["tokens"]) == (inferred["pool"]["tokens"], found)
    assert predicted["prefill_seconds"] == pytest.approx(inferred["pool"]["prefill_seconds"])
    assert predicted["prefill_seconds"] >= predicted["first_token_seconds"] > 0.0
    # How much that is depends on what else runs here; that it is what the servers count does not.
    assert realised["prefill_seconds"] == pytest.approx(prefill, abs=1e-6)
    assert inferred["pool"]["evicted_blocks"] > 0, "all of it fits: the size was no question"
    for said in (inferred, known):
        assert said["pool"]["tokens"] == pytest.approx(found, rel=0.1)
    assert again["pool"]["found"] == found
    assert again["pool"]["tokens"] == pytest.approx(found, rel=0.1)
    # Side by side no two runs are in one order, and which single blocks are answers' is less clear.
    assert crowd["pool"]["tokens"] == pytest.approx(found_crowded, rel=0.3)
