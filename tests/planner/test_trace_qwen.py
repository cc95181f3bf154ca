"""The Qwen-Bailian traces are read; the same content behind other content is other KV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstore.errors import Invalid
from kvstore.planner import trace_qwen
from kvstore.planner.load import Load
from tests.planner.loads import write

LINE = {
    "chat_id": 159,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 132,
    "type": "text",
    "turn": 1,
    "hash_ids": [10, 11, 12],
}


def read(folder: Path, *changed: dict[str, Any]) -> Load:
    lines = [json.dumps({**LINE, **one}) for one in changed]
    return trace_qwen.read(write(folder / "t.jsonl", *lines))


def test_a_trace_is_read(tmp_path: Path) -> None:
    later = {"parent_chat_id": 159, "timestamp": 62.614, "turn": 2, "hash_ids": [10, 11, 13]}
    load = read(tmp_path, {}, later)
    load.check()
    assert load.block_tokens == 16
    assert load.arrival.tolist() == [0, pytest.approx(1.5)]
    assert load.input_tokens.tolist() == [33, 33]
    assert load.output_tokens.tolist() == [132, 132]
    assert load.blocks.tolist() == [0, 1, 2, 0, 1, 3]


def test_an_id_behind_other_blocks_is_another_block(tmp_path: Path) -> None:
    load = read(tmp_path, {}, {"hash_ids": [9, 11, 12]}, {"hash_ids": [9, 11, 11]})
    load.check()
    assert load.blocks.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 6]


@pytest.mark.parametrize(
    "change, story",
    [
        ({"chat_id": "a"}, "chat_id = 'a': wants a whole number from 0"),
        ({"parent_chat_id": -2}, "parent_chat_id = -2: wants a whole number from -1"),
        ({"turn": True}, "turn = True: wants a whole number"),
        ({"type": 3}, "type = 3: wants a word"),
        ({"timestamp": -0.5}, "timestamp = -0.5: wants seconds from 0"),
        ({"timestamp": 1.7e12}, "timestamp = 1700000000000.0: wants seconds from 0 to 3,660 days"),
        ({"input_length": "33"}, "input_length = '33': wants a whole number from 1"),
        ({"output_length": -1}, "output_length = -1: wants a whole number from 0"),
        ({"hash_ids": [10, 11]}, "hash_ids = .*: has 2 ids; 33 tokens are 3 blocks"),
        ({"hash_ids": [10, 11, None]}, r"hash_ids\[2\] = None: wants a whole number"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(
    tmp_path: Path, change: dict[str, Any], story: str
) -> None:
    with pytest.raises(Invalid, match=rf"t\.jsonl:2: {story}"):
        read(tmp_path, {}, change)


@pytest.mark.parametrize("field", trace_qwen.FIELDS)
def test_a_missing_field_is_named_with_its_line(tmp_path: Path, field: str) -> None:
    rest = json.dumps({name: value for name, value in LINE.items() if name != field})
    with pytest.raises(Invalid, match=rf"t\.jsonl:2: {field} is not there"):
        trace_qwen.read(write(tmp_path / "t.jsonl", json.dumps(LINE), rest))
