"""Each connector's methods take what the engine it was tested with passes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.record import RECORDS, methods_of, problems, recorded

EVERY = sorted(RECORDS.glob("*.json"))
SGLANG = "sglang-0.5.23.json"


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_a_connector_takes_what_its_engine_passes(path: Path) -> None:
    record = recorded(path)
    assert path.stem == f"{record['engine']}-{record['version']}"
    assert problems(record) == []


def test_there_is_a_record_of_sglang() -> None:
    assert SGLANG in [path.name for path in EVERY]


def test_there_is_a_record_of_lmcache() -> None:
    assert "lmcache-0.5.6.json" in [path.name for path in EVERY]


@pytest.mark.parametrize(
    ("method", "asked", "said"),
    [
        ("set", ["key", "target_location", "value"], "MoonpoolStorage.set takes ['key', 'value'"),
        ("clear", ["everything"], "MoonpoolStorage.clear takes []; ['everything'] is asked for"),
        ("exists", [], "MoonpoolStorage.exists takes ['key']; [] is asked for"),
    ],
)
def test_a_method_that_takes_something_else_is_found(
    method: str, asked: list[str], said: str
) -> None:
    record = recorded(RECORDS / SGLANG)
    record["methods"][method] = asked
    (found,) = problems(record)
    assert found.startswith(said)


def test_a_method_that_is_missing_is_found() -> None:
    record = recorded(RECORDS / SGLANG)
    record["abstract"].append("flush")
    assert problems(record) == ["MoonpoolStorage.flush is missing"]


def test_parameters_are_read_from_the_syntax() -> None:
    source = "class C:\n def a(self, x, /, y=1, *z, k=2, **w): ...\n async def b(self): ...\n"
    assert methods_of(source, "C") == {"a": (["x", "y", "z", "k", "w"], 1), "b": ([], 0)}
