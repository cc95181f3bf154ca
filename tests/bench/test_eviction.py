"""The bench's figures follow from what was kept, and the node is nowhere far behind LRU."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import eviction
from bench.eviction import Kept, belady, lru, node, prefill_s
from bench.traces import Trace
from tests.bench.adversaries import ADVERSARIES, BLOCK_TOKENS, prompt, request

BLOCKS = 400


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("blocks", [BLOCKS, BLOCKS // 4])
def test_the_node_finds_nearly_what_lru_finds_or_more(name: str, blocks: int) -> None:
    requests = list(ADVERSARIES[name](random.Random(7)))
    ours, theirs, best = (sum(how(requests, blocks)) for how in (node, lru, belady))
    assert ours >= 0.99 * theirs
    assert theirs <= best and ours <= best


def test_where_new_prompts_never_come_again_the_node_finds_much_more_than_lru() -> None:
    requests = list(ADVERSARIES["scans"](random.Random(7)))
    assert sum(node(requests, BLOCKS // 2)) > 1.2 * sum(lru(requests, BLOCKS // 2))


def test_lru_keeps_what_was_used_last_and_loses_the_deepest_first() -> None:
    a, b = prompt(1, 3), prompt(2, 2)
    assert lru([a, b, a, b], blocks=4) == [0, 0, 2, 1]
    assert lru([a, b, a, b], blocks=5) == [0, 0, 3, 2]
    assert lru([a, a], blocks=2) == [0, 2], "of a prompt that is too long the start is kept"


def test_belady_loses_what_is_asked_for_last() -> None:
    a, b, c = (prompt(name, 2) for name in (1, 2, 3))
    assert belady([a, b, c, a, b], blocks=4) == [0, 0, 0, 2, 2]
    assert lru([a, b, c, a, b], blocks=4) == [0] * 5
    assert belady([a, b, c, b, a], blocks=3) == [0, 0, 0, 2, 1]


def test_the_node_is_lru_while_nothing_is_known() -> None:
    requests = [prompt(name, 3) for name in (1, 2, 3, 1, 4, 2, 1, 1, 5, 3)]
    for blocks in (4, 6, 9):
        assert node(requests, blocks) == lru(requests, blocks)


def test_what_most_requests_share_is_not_scored() -> None:
    requests = tuple(request([0, name]) for name in (1, 2, 1, 3))
    kept = Kept(Trace(BLOCK_TOKENS, requests), [0, 1, 2, 1])
    assert kept.hit == 4 / 8
    assert kept.hit_scored == 1 / 4, "exactly half ask for the block behind it: that is scored"


def test_saved_seconds_grow_faster_than_tokens_and_count_no_token_that_is_not_there() -> None:
    whole, short = request([1, 2]), request([1, 2], short=True)
    assert prefill_s(2_000) > 2 * prefill_s(1_000) > 0
    for one in (whole, short):
        kept = Kept(Trace(BLOCK_TOKENS, (one,)), [2])
        assert kept.saved_s == prefill_s(one.tokens)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 512 * 3, "output_length": 1, "hash_ids": ids}
        for ids in ([0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5])
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_last_line_has_a_row_with_its_figures_for_each_size(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["eviction", "--trace", str(trace), "--blocks", "3,6", "--json"]
    assert command.main(asked) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    small, large = said["rows"]
    assert (small["blocks"], small["hit"], small["lru"], small["belady"]) == (3, 0, 0, 0.25)
    assert (large["blocks"], large["hit"], large["lru"], large["belady"]) == (6, 0.5, 0.5, 0.5)
    assert large["hit_scored"] == 0.5 and large["saved_s"] > 0
    assert said["ratio"] == 1 and said["holds"] is True


def test_without_a_trace_it_says_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["eviction"]) == 2
    said = capsys.readouterr().err
    assert "Mooncake" in said and "Qwen-Bailian" in said and "--trace" in said


def test_all_goes_without_a_bench_that_needs_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BENCHES", {"eviction": "needs a file"})
    monkeypatch.setattr(eviction, "run", None)
    assert command.main(["all"]) == 0


@pytest.mark.parametrize("text", ["0", "1,,2", "ten", "5,-1"])
def test_sizes_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        command.main(["eviction", "--blocks", text])
