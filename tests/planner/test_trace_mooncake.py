"""Mooncake's traces are read, written, and refused by line and field."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from kvstore.errors import Invalid
from kvstore.planner import bounds, trace_mooncake
from kvstore.planner.load import Load
from kvstore.planner.synthetic_turns import MultiTurn
from tests.planner.loads import PROVEN, Told, told, write

LINE = {"timestamp": 0, "input_length": 513, "output_length": 2, "hash_ids": [7, 9]}


def read(folder: Path, *changed: dict[str, Any]) -> Load:
    """A file with a line for each, which is LINE but for what is named."""
    lines = [json.dumps({**LINE, **one}) for one in changed]
    return trace_mooncake.read(write(folder / "t.jsonl", *lines))


def test_a_trace_is_read(tmp_path: Path) -> None:
    second = {"timestamp": 1500, "input_length": 1100, "output_length": 30, "hash_ids": [7, 40, 41]}
    load = read(tmp_path, {}, second, {"timestamp": 1500.25, "hash_ids": [50, 51]})
    load.check()
    assert load.block_tokens == 512
    assert load.arrival.tolist() == [0, 1.5, 1.50025]
    assert load.input_tokens.tolist() == [513, 1100, 513]
    assert load.output_tokens.tolist() == [2, 30, 2]
    assert load.first.tolist() == [0, 2, 5, 7]
    assert load.blocks.tolist() == [0, 1, 0, 2, 3, 4, 5]


def test_lines_out_of_order_are_sorted_and_of_one_time_the_earlier_line_is_first(
    tmp_path: Path,
) -> None:
    stamps = [5000, 2000] * 50
    lines = [
        {"timestamp": stamp, "output_length": place, "hash_ids": [place % 4, 10 + place]}
        for place, stamp in enumerate(stamps, 1)
    ]
    load = read(tmp_path, *lines)
    load.check()
    assert load.arrival.tolist() == [0] * 50 + [3] * 50
    assert load.output_tokens.tolist() == [*range(2, 101, 2), *range(1, 101, 2)]
    assert load.blocks[:8].tolist() == [0, 1, 2, 3, 0, 4, 2, 5]
    assert len(set(load.blocks[100::2].tolist())) == 2, "the later half has other stems"


def test_blank_lines_other_fields_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    more = json.dumps({**LINE, "model": "some"})
    path.write_text(f"\ufeff{json.dumps(LINE)}\r\n\n  \n{more}")
    assert trace_mooncake.read(path).blocks.tolist() == [0, 1, 0, 1]


def test_an_empty_answer_is_one_token(tmp_path: Path) -> None:
    assert read(tmp_path, {"output_length": 0}).output_tokens.tolist() == [1]


def test_the_largest_ids_are_kept_apart(tmp_path: Path) -> None:
    load = read(tmp_path, {"hash_ids": [2**64 - 1, 2**64 - 2]})
    assert load.blocks.tolist() == [0, 1]


TOO_LARGE = bounds.TOKENS_MAX + 1
WRONG = [
    ({"timestamp": -1}, "timestamp = -1: wants milliseconds from 0"),
    ({"timestamp": True}, "timestamp = True: wants milliseconds"),
    ({"timestamp": "0"}, "timestamp = '0': wants milliseconds"),
    ({"timestamp": None}, "timestamp = None: wants milliseconds"),
    ({"timestamp": np.nan}, "timestamp = nan: wants milliseconds"),
    ({"timestamp": np.inf}, "timestamp = inf: wants milliseconds"),
    ({"timestamp": 10**18}, "timestamp = 1000000000000000000: wants milliseconds"),
    ({"input_length": 0}, "input_length = 0: wants a whole number from 1"),
    ({"input_length": -5}, "input_length = -5: wants a whole number from 1"),
    ({"input_length": 5.0}, "input_length = 5.0: wants a whole number from 1"),
    ({"input_length": True}, "input_length = True: wants a whole number from 1"),
    ({"input_length": TOO_LARGE}, "input_length = 16777217: .* to 16,777,216"),
    ({"output_length": -1}, "output_length = -1: wants a whole number from 0"),
    ({"output_length": [1]}, r"output_length = \[1\]: wants a whole number from 0"),
    ({"output_length": TOO_LARGE}, "output_length = 16777217: .* to 16,777,216"),
    ({"hash_ids": [7]}, "hash_ids = .7.: has 1 ids; 513 tokens are 2 blocks"),
    ({"hash_ids": [7, 9, 10]}, "hash_ids = .*: has 3 ids; 513 tokens are 2 blocks"),
    ({"hash_ids": 7}, "hash_ids = 7: wants a list"),
    ({"hash_ids": [7, True]}, r"hash_ids\[1\] = True: wants a whole number"),
    ({"hash_ids": [7, -9]}, r"hash_ids\[1\] = -9: wants a whole number"),
    ({"hash_ids": [2**64, 9]}, r"hash_ids\[0\] = 18446744073709551616: .* 2\*\*64 - 1"),
    ({"hash_ids": [7, 9.5]}, r"hash_ids\[1\] = 9.5: wants a whole number"),
    ({"hash_ids": [9, 7]}, r"hash_ids\[0\] = 9: stands .* than hash_ids\[1\] of line 1;"),
    ({"hash_ids": [8, 9]}, r"hash_ids\[1\] = 9: stands .* than hash_ids\[1\] of line 1;"),
    ({"hash_ids": [8, 8]}, r"hash_ids\[1\] = 8: stands .* than hash_ids\[0\] of line 2;"),
]


@pytest.mark.parametrize("change, story", WRONG)
def test_a_wrong_field_is_named_with_its_line(
    tmp_path: Path, change: dict[str, Any], story: str
) -> None:
    with pytest.raises(Invalid, match=rf"t\.jsonl:2: {story}"):
        read(tmp_path, {}, change, {})


@pytest.mark.parametrize("field", trace_mooncake.FIELDS)
def test_a_missing_field_is_named_with_its_line(tmp_path: Path, field: str) -> None:
    rest = json.dumps({name: value for name, value in LINE.items() if name != field})
    with pytest.raises(Invalid, match=rf"t\.jsonl:2: {field} is not there"):
        trace_mooncake.read(write(tmp_path / "t.jsonl", json.dumps(LINE), rest))


def test_what_a_file_calls_its_fields_does_nothing_to_a_screen(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"has '\\x1b\[2J', b") as caught:
        trace_mooncake.read(write(tmp_path / "t.jsonl", json.dumps({"\x1b[2J": 1, "b": 2})))
    assert str(caught.value).isprintable()


def test_a_contradiction_is_of_the_later_line_whatever_the_order_of_time(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"t\.jsonl:2: .* of line 1"):
        read(tmp_path, {"timestamp": 9}, {"timestamp": 1, "hash_ids": [8, 9]})


@PROVEN
@given(told(block_tokens=512, each=200))
def test_a_load_that_is_written_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, case: Told
) -> None:
    assert round_trip(tmp_path_factory.getbasetemp(), case.load) == case.load


def test_a_made_up_load_that_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    load = MultiTurn().load(seed=3)
    assert round_trip(tmp_path, load) == load


def round_trip(folder: Path, load: Load) -> Load:
    path = folder / "written.jsonl"
    with path.open("w") as file:
        trace_mooncake.to_mooncake(load, file)
    return trace_mooncake.read(path)


@PROVEN
@given(told(block_tokens=16))
def test_a_load_of_other_blocks_cannot_be_written(case: Told) -> None:
    with pytest.raises(Invalid, match="16 tokens a block: Mooncake's format is of 512"):
        trace_mooncake.to_mooncake(case.load, io.StringIO())
