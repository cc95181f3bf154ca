"""The bench of routing, a small one: what it reports, and that nothing was lost on the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench import chats, route
from bench.drive import Ran
from bench.engine import Shape as Model
from bench.fleet import Plan
from bench.foretold import Foretold
from kvstore.gateway.request import Outcome

SMALL = route.Sizes(
    Model(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128),
    Plan(nodes=2, dram=("4MiB",), slab="1MiB", pages=96),
    replace(chats.Shape(), documents=2, document_tokens=256, chats=4, turns=2, rate=4.0),
)


def test_a_small_round_counts_every_request_and_loses_none() -> None:
    report = route.run(1, lambda text: None, SMALL, foretold=False)
    rows = {row.name: row for row in report.rows}
    assert set(rows) == {
        "mean TTFT, ms",
        "token hit rate",
        "p99 TTFT, ms",
        "requests lost or wrong",
    }
    lost = rows["requests lost or wrong"]
    assert lost.value == 0 and lost.ratio == 0
    assert lost.also["requests"] == 3 * 8
    assert 0 < rows["token hit rate"].value < 1


def test_a_load_is_the_same_by_seed_and_its_chats_grow() -> None:
    shape = chats.Shape()
    load = chats.load(shape, seed=4)
    assert load == chats.load(shape, seed=4) != chats.load(shape, seed=5)
    assert len(load) == shape.chats * shape.turns
    assert [one.at for one in load] == sorted(one.at for one in load) and load[0].at == 0.0
    turns = {one.request.id: one.request.prompt for one in load}
    for chat in range(shape.chats):
        first, second = (turns[f"chat {chat} turn {turn}"] for turn in (0, 1))
        assert second[: len(first)] == first
    assert 0.5 < chats.hit_share_max(load, 64) < 1.0


def test_a_load_is_sent_at_any_rate_and_stays_what_it_is() -> None:
    load = chats.load(chats.Shape(), seed=4)
    slow = chats.at_rate(load, 0.5)
    assert slow[-1].at == pytest.approx(len(load) / 0.5)
    assert [one.request for one in slow] == [one.request for one in load]
    assert slow[9].at / slow[-1].at == pytest.approx(load[9].at / load[-1].at)


def test_a_load_in_other_words_finds_nothing_of_the_first_and_as_much_of_itself() -> None:
    shape = chats.Shape()
    load = chats.load(shape, seed=4)
    other = chats.reworded(load, 1, shape.vocabulary)
    for one, two in zip(load, other, strict=True):
        assert one.at == two.at and len(one.request.prompt) == len(two.request.prompt)
        assert one.request.prompt[:64] != two.request.prompt[:64]
    assert chats.hit_share_max(other, 64) == chats.hit_share_max(load, 64)
    both = [*load, *(replace(one, at=one.at + load[-1].at) for one in other)]
    assert chats.hit_share_max(both, 64) == pytest.approx(chats.hit_share_max(load, 64))
    assert {one.request.id for one in load}.isdisjoint(one.request.id for one in other)


def test_what_the_first_half_took_beside_what_was_simulated_is_expected_of_the_second() -> None:
    coming = chats.load(SMALL.load, seed=1)
    half = len(coming) // 2
    simulated = np.linspace(0.1, 0.4, len(coming))
    simulated[0] = np.nan  # refused there, and served here
    seconds = 0.05 + 0.8 * simulated
    seconds[0] = 0.3
    ran = Ran(coming, [Outcome(ttft_seconds=float(one)) for one in seconds])
    every = np.ones(len(coming))
    told = route.of_second_half(Foretold(every, every / 2, simulated), ran.part(slice(half)))
    assert told.ttft_seconds == pytest.approx(seconds[half:].mean())
    assert told.untold_seconds == pytest.approx(0.05) and told.hit_share == 0.5
