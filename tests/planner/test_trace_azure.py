"""The Azure traces of both years are read, and nothing in them is taken for shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.errors import Invalid
from kvstore.planner import trace_azure
from kvstore.planner.load import Load
from tests.planner.loads import write

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:17:03.9799600,4808,10"


def read(folder: Path, *lines: str) -> Load:
    return trace_azure.read(write(folder / "t.csv", *lines))


def test_a_trace_of_2023_is_read(tmp_path: Path) -> None:
    load = read(tmp_path, HEADER, ROW, "2023-11-16 18:17:04.0319600,3180,8")
    load.check()
    assert load.arrival.tolist() == [0, pytest.approx(0.052)]
    assert load.input_tokens.tolist() == [4808, 3180]
    assert load.output_tokens.tolist() == [10, 8]


def test_a_trace_of_2024_is_read(tmp_path: Path) -> None:
    rows = ["2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01+00:00,2399,6"]
    load = read(tmp_path, HEADER, *rows, "2024-05-10T02:00:02Z,1,0")
    load.check()
    assert load.arrival.tolist() == [0, pytest.approx(0.99007), pytest.approx(7201.99007)]
    assert load.output_tokens.tolist() == [5, 6, 1]


def test_nothing_is_reused(tmp_path: Path) -> None:
    load = read(tmp_path, HEADER, ROW, ROW, ROW)
    assert load.blocks.tolist() == list(range(30))
    assert load.describe().hit_rate_max == 0


def test_a_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    load = read(tmp_path, HEADER, "2024-05-10 00:00:00,1,1", "2024-05-10 02:00:01+02:00,1,1")
    assert load.arrival.tolist() == [0, 1]


def test_rows_out_of_order_are_sorted(tmp_path: Path) -> None:
    load = read(tmp_path, HEADER, ROW, "2023-11-16 18:17:02.9799600,7,1")
    load.check()
    assert load.arrival.tolist() == [0, 1]
    assert load.input_tokens.tolist() == [7, 4808]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    header = "model,GeneratedTokens,TIMESTAMP,ContextTokens"
    load = read(tmp_path, header, "m,3,2023-11-16 18:17:03,5")
    assert (load.input_tokens.tolist(), load.output_tokens.tolist()) == ([5], [3])


@pytest.mark.parametrize(
    "row, story",
    [
        ("yesterday,1,1", "TIMESTAMP = 'yesterday': wants a time, as in 2023-11-16 18:17"),
        ("NaN,1,1", "TIMESTAMP = 'NaN': wants a time"),
        ("2093-11-16 18:17:03,1,1", "TIMESTAMP = '2093-.*: is over 3,660 days from the first"),
        ("2023-11-16 18:17:03,0,1", "ContextTokens = '0': wants a whole number from 1"),
        ("2023-11-16 18:17:03,-4,1", "ContextTokens = '-4': wants a whole number from 1"),
        ("2023-11-16 18:17:03,1_0,1", "ContextTokens = '1_0': wants a whole number from 1"),
        ("2023-11-16 18:17:03,nan,1", "ContextTokens = 'nan': wants a whole number from 1"),
        ("2023-11-16 18:17:03,,1", "ContextTokens = '': wants a whole number from 1"),
        ("2023-11-16 18:17:03,5,1.5", "GeneratedTokens = '1.5': wants a whole number from 0"),
        ("2023-11-16 18:17:03,5,99999999", "GeneratedTokens = '99999999': .* to 16,777,216"),
        ("2023-11-16 18:17:03,5", "2 fields; the header names 3"),
        ("2023-11-16 18:17:03,5,1,7", "4 fields; the header names 3"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, row: str, story: str) -> None:
    with pytest.raises(Invalid, match=rf"t\.csv:3: {story}"):
        read(tmp_path, HEADER, ROW, row)


@pytest.mark.parametrize("field", trace_azure.FIELDS)
def test_a_header_without_a_field_is_refused(tmp_path: Path, field: str) -> None:
    header = HEADER.replace(field, "other")
    with pytest.raises(Invalid, match=rf"t\.csv:1: {field} is not there: wants a header"):
        read(tmp_path, header, ROW)


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"t\.csv:1: a header, and no request"):
        read(tmp_path, HEADER)
