"""Traces are read in two formats, and what is wrong is named with its file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.traces import BadTrace, key_of, read

MOONCAKE: dict[str, Any] = {
    "timestamp": 27482,
    "input_length": 600,
    "output_length": 52,
    "hash_ids": [46, 47],
}
BAILIAN: dict[str, Any] = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.114,
    "input_length": 48,
    "output_length": 1,
    "type": "text",
    "turn": 2,
    "hash_ids": [1089, 1090, 1091],
}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def test_each_format_is_known_by_its_fields(tmp_path: Path) -> None:
    trace = read(written(tmp_path, MOONCAKE))
    assert trace.block_tokens == 512 and trace.blocks == 2
    assert trace.requests[0].tokens == 600 and trace.requests[0].short
    trace = read(written(tmp_path, BAILIAN))
    assert trace.block_tokens == 16 and trace.blocks == 3
    assert not trace.requests[0].short, "48 tokens fill three blocks of 16"


def test_blocks_are_the_same_where_all_before_them_are(tmp_path: Path) -> None:
    ids = ([1, 2, 3], [1, 2, 4], [9, 2, 3], [1])
    lines = [{**MOONCAKE, "hash_ids": one, "input_length": 512 * len(one)} for one in ids]
    first, second, third, fourth = (one.keys for one in read(written(tmp_path, *lines)).requests)
    assert first[:2] == second[:2] and first[2] != second[2]
    assert not set(first) & set(third), "an id behind another block is another block"
    assert fourth == first[:1] == (key_of(b"", 1),)
    assert all(len(key) == 32 for key in first)


def test_empty_lines_are_passed_over_and_lines_are_counted_with_them(tmp_path: Path) -> None:
    assert len(read(written(tmp_path, MOONCAKE, "", MOONCAKE, "")).requests) == 2
    with pytest.raises(BadTrace, match=r"trace\.jsonl:3: not JSON"):
        read(written(tmp_path, MOONCAKE, "", "{"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", "now"),
        ("timestamp", -1),
        ("timestamp", True),
        ("input_length", 1.5),
        ("input_length", -1),
        ("output_length", None),
        ("hash_ids", 7),
        ("hash_ids", [1, "2"]),
        ("hash_ids", [1, -2]),
    ],
)
@pytest.mark.parametrize("good", [MOONCAKE, BAILIAN])
def test_a_field_that_is_wrong_is_named(
    tmp_path: Path, good: dict[str, Any], field: str, value: object
) -> None:
    path = written(tmp_path, good, {**good, field: value})
    with pytest.raises(BadTrace, match=rf"trace\.jsonl:2: {field}: "):
        read(path)


@pytest.mark.parametrize("good", [MOONCAKE, BAILIAN])
def test_a_field_that_is_missing_is_named(tmp_path: Path, good: dict[str, Any]) -> None:
    for field in good:
        less = {name: value for name, value in good.items() if name != field}
        with pytest.raises(BadTrace, match=rf"trace\.jsonl:2: {field}: not there"):
            read(written(tmp_path, good, less))
    with pytest.raises(BadTrace, match=r"trace\.jsonl:1: hash_ids: not there, in Qwen-Bailian"):
        read(written(tmp_path, {"timestamp": 1, "input_length": 1, "output_length": 1}))


def test_what_is_no_trace_at_all_is_refused(tmp_path: Path) -> None:
    for lines, said in [(["[1]"], "1: not an object"), ([""], "no request in it")]:
        with pytest.raises(BadTrace, match=said):
            read(written(tmp_path, *lines))
    with pytest.raises(BadTrace, match="No such file"):
        read(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadTrace, match="binary"):
        read(tmp_path / "binary")
