"""`moonpool attach` beside two real SGLang servers: its reasons add up to what they count, and what
it says of a pool is what follows from the prompts and from what each server had of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from kvstore.attach.gain import BLOCK_TOKENS_MIN
from tests.attach.attached import attached
from tests.connectors.sglang.server import IN_TURN, Server, servers

PAGE, TOKENS = 32, 1_024  # of a server's own cache
CLIENTS = 4
POOL = ("--dram", "1GiB", "--kv-bytes-per-token", "512")  # more than all of it

Load: TypeAlias = list[tuple[list[int], int]]  # prompts, and how long their answers are


def load(seed: int, prefixes: int = 6, requests: int = 50) -> Load:
    """Prompts that share prefixes, some of them asked again, and how long their answers are."""
    dice = random.Random(seed)

    def drawn(count: int) -> list[int]:
        return [dice.randrange(3, 250) for _ in range(count)]

    begins = [drawn(64 * dice.randint(2, 4)) for _ in range(prefixes)]
    found: Load = []
    for number in range(requests):
        if number % 9 == 8:
            found.append(found[dice.randrange(len(found))])
        else:
            tokens = begins[dice.randrange(prefixes)] + drawn(dice.randint(5, 120))
            found.append((tokens, dice.choice([1, 4, 40])))
    return found


def play(asked: Load, some: Sequence[Server]) -> int:
    """Round-robin, one after another. Tokens that a pool of any size would have had beyond what
    each server had."""
    known: set[tuple[int, ...]] = set()
    gained = 0
    for number, (tokens, count) in enumerate(asked):
        answer, cached = some[number % len(some)].complete(tokens, count)
        whole = len(tokens) - 1
        ends = range(BLOCK_TOKENS_MIN, whole + 1, BLOCK_TOKENS_MIN)
        had = sum(tuple(tokens[:end]) in known for end in ends) * BLOCK_TOKENS_MIN
        gained += max(0, had - cached)
        text = tokens + answer[:-1]  # the last token of an answer is never computed
        known |= {
            tuple(text[:end]) for end in range(BLOCK_TOKENS_MIN, len(text) + 1, BLOCK_TOKENS_MIN)
        }
    return gained


def test_reasons_add_up_to_sglang_s_counters_and_the_gain_is_what_follows_from_the_prompts(
    model: Path, tmp_path: Path
) -> None:
    asked, crowded = load(1), load(2)
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps({"prompt_tokens": len(one)}) + "\n" for one, _ in asked))
    some = [
        Server(model, tmp_path / f"{one}.log", IN_TURN, page=PAGE, tokens=TOKENS) for one in "ab"
    ]
    with (
        servers(*some),
        attached(some, *POOL) as inferring,
        attached(some, *POOL, "--requests", str(log)) as knowing,
    ):
        gained = play(asked, some)
        inferred, known = inferring.report(), knowing.report()
        queries = sum(one.counted("prompt_tokens_total") for one in some)
        hits = sum(one.counted("cached_tokens_total") for one in some)
        with attached(some, *POOL) as beside, ThreadPoolExecutor(CLIENTS) as clients:
            both = [
                clients.submit(some[number % 2].complete, *one)
                for number, one in enumerate(crowded)
            ]
            for one in both:
                one.result()
            crowd = beside.report()
    print(json.dumps(inferred), json.dumps(known), json.dumps(crowd), gained, sep="\n")
    for said in (inferred, known, crowd):
        assert sum(said["reasons"].values()) == said["asked"]["queries"] - said["asked"]["hits"]
        assert said["reasons"]["untold"] == 0 and not said["notes"]
    for said in (inferred, known):
        assert (said["asked"]["queries"], said["asked"]["hits"]) == (queries, hits)
        assert said["asked"]["prompts"] == said["asked"]["prefills"] == len(asked)
        assert said["asked"]["prefilled"] == queries - hits
    assert crowd["asked"]["queries"] == sum(len(one) for one, _ in crowded)
    # What is true of the load, whatever anybody says.
    whole = {tuple(one[:end]) for one, _ in asked for end in range(PAGE, len(one) + 1, PAGE)}
    why = known["reasons"]
    assert known["exact"] and why["short"] == sum(len(one) % PAGE for one, _ in asked)
    assert why["evicted"] > 0 and why["elsewhere"] > 0
    # Which blocks are of answers is a guess.
    assert why["never"] == pytest.approx(PAGE * len(whole), rel=0.05)
    assert known["pool"]["tokens"] == pytest.approx(gained, rel=0.05)
