"""The table of launches says what was measured, and is believed where it can be nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstore.kernels.gpu.launch import CANDIDATES, default
from kvstore.kernels.gpu.launch_table import (
    PATH,
    BadTable,
    Tuned,
    formatted,
    launches_of,
    parsed,
)

WON = {
    ("scatter_tile", "words of 8, longer strips"): CANDIDATES["scatter_tile"][-1],
    ("gather_tile", "words of 8, longer strips"): CANDIDATES["gather_tile"][3],
    ("gather_tile", "words of 2, longer strips"): CANDIDATES["gather_tile"][5],
    ("attend", "some shape"): CANDIDATES["attend"][7],
}
TUNED = Tuned("2.13.0", "3.9.0", "python -m bench tune --write", "2026-11-26", WON)
OTHER = Tuned("2.13.0", "3.8.1", "python -m bench tune --write", "2026-11-20", {})
TABLE = {"Some GPU, 9.0": TUNED, "A GPU, 8.0": OTHER}


def test_what_is_written_is_what_is_read() -> None:
    assert parsed(formatted(TABLE)) == TABLE
    assert parsed(formatted({})) == {}
    assert launches_of(formatted(TABLE), "Some GPU, 9.0", "3.9.0") == WON


def test_the_order_in_which_launches_were_found_makes_no_difference_to_the_text() -> None:
    turned = Tuned("2.13.0", "3.9.0", TUNED.command, TUNED.date, dict(reversed(WON.items())))
    text = formatted({"A GPU, 8.0": OTHER, "Some GPU, 9.0": turned})
    assert text == formatted(TABLE) == formatted(parsed(text))
    assert text.endswith("}\n")


def test_the_table_of_the_product_is_one_that_was_written_so() -> None:
    text = PATH.read_text()
    assert text == formatted(parsed(text))
    assert ("None has been measured yet" in text) == (not parsed(text))


def test_a_device_that_is_not_named_has_nothing() -> None:
    assert launches_of(formatted(TABLE), "Another GPU, 9.0", "3.9.0") == {}


def test_launches_hold_for_the_compiler_they_were_measured_with() -> None:
    text = formatted(TABLE)
    assert launches_of(text, "Some GPU, 9.0", "3.9.4+git0123") == WON
    for other in ("3.10.0", "3.8.0", "4.9.0"):
        with pytest.raises(BadTable, match=r"measured with Triton 3\.9\.0, and this is"):
            launches_of(text, "Some GPU, 9.0", other)


def changed(*path: str, to: Any) -> str:
    """The text with another value at a place of the first device's part."""
    whole = json.loads(formatted(TABLE))
    at = whole["devices"]["Some GPU, 9.0"]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return json.dumps(whole)


TILE = ("launches", "gather_tile", "words of 8, longer strips")
GOOD = {"warps": 4, "stages": 1, "block": 1024}
DAMAGED = {
    "cut off": formatted(TABLE)[:-9],
    "empty": "",
    "deeper than a parser goes": "[" * 100_000,
    "a list": "[]",
    "no devices": '{"about": ""}',
    "devices are a list": '{"devices": []}',
    "no launches": changed("launches", to=None),
    "launches are a list": changed("launches", to=[1]),
    "a program's are a list": changed("launches", "gather_tile", to=[1]),
    "a launch is a number": changed(*TILE, to=4),
    "a launch lacks its warps": changed(*TILE, to={"block": 1024}),
    "a launch has more": changed(*TILE, to={**GOOD, "grid": 3}),
    "warps that are no power of two": changed(*TILE, to={**GOOD, "warps": 3}),
    "warps without end": changed(*TILE, to={**GOOD, "warps": 1 << 40}),
    "no block": changed(*TILE, to={"warps": 4, "stages": 1}),
    "a block of text": changed(*TILE, to={**GOOD, "block": "1024"}),
    "stages that nobody tries": changed(*TILE, to={**GOOD, "stages": 9}),
    "a program that there is not": changed("launches", "run_away", to={"any": GOOD}),
    "no version": changed("triton", to=None),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_what_is_damaged_is_found(how: str) -> None:
    with pytest.raises(BadTable):
        launches_of(DAMAGED[how], "Some GPU, 9.0", "3.9.0")
    with pytest.raises(BadTable):
        parsed(DAMAGED[how])


def test_damage_to_one_devices_part_leaves_the_others() -> None:
    text = DAMAGED["no launches"]
    assert launches_of(text, "A GPU, 8.0", "3.8.1") == {}


def test_a_number_that_is_equal_to_a_whole_one_is_read_as_that() -> None:
    text = changed(*TILE, to={"warps": 4.0, "stages": True, "block": 1024.0})
    found = launches_of(text, "Some GPU, 9.0", "3.9.0")["gather_tile", TILE[2]]
    assert found is default("gather_tile")
