"""What was predicted and what came are for as much as is asked now, and files are not trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstore.attach.asked import Asked
from kvstore.attach.compared import Brought, Compared, read
from kvstore.errors import Invalid

ASKED = {"queries": 1_000, "prompts": 10, "prefill_seconds": 5.0, "first_token_seconds": 8.0}
POOL = {"tokens": 400, "prefill_seconds": 2.0, "first_token_seconds": 1.5}
GOOD = {"asked": ASKED, "pool": POOL}


def written(folder: Path, said: object) -> Path:
    file = folder / "before.json"
    file.write_text(said if isinstance(said, str) else json.dumps(said))
    return file


def test_both_are_for_as_much_as_is_asked_now(tmp_path: Path) -> None:
    now = Asked(
        *(2_000, 700, 1_300, 900, 50, 40),
        first_token_seconds=20.0,
        prefill_seconds=7.0,
    )
    assert read(written(tmp_path, GOOD)).compared(now) == Compared(
        predicted=Brought(800, 4.0, 6.0),
        realised=Brought(900, 10.0 - 7.0, 32.0 - 20.0),
    )


def test_a_pool_that_costs_is_said_to(tmp_path: Path) -> None:
    now = Asked(1_000, prompts=10, prefill_seconds=6.0, first_token_seconds=8.5)
    said = read(written(tmp_path, GOOD)).compared(now).realised
    assert said == Brought(0, -1.0, -0.5)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "is no JSON object"),
        ([1], "is no JSON object"),
        ({}, "has no queries"),
        ({**GOOD, "asked": {**ASKED, "prompts": "7"}}, "has no prompts"),
        ({**GOOD, "asked": {**ASKED, "prompts": True}}, "has no prompts"),
        ({**GOOD, "asked": {**ASKED, "prefill_seconds": -1.0}}, "has no prefill_seconds"),
        ({**GOOD, "asked": {**ASKED, "queries": 10**400}}, "has no queries"),
        ({**GOOD, "asked": {**ASKED, "queries": 0}}, "nothing was asked then"),
        ({**GOOD, "pool": None}, "has no tokens"),
        ({**GOOD, "pool": {**POOL, "tokens": float("inf")}}, "has no tokens"),
    ],
)
def test_what_is_no_such_report_is_refused(tmp_path: Path, said: object, why: str) -> None:
    with pytest.raises(Invalid, match=f"{why}.*attach --json --dram"):
        read(written(tmp_path, said))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        read(tmp_path / "none")
