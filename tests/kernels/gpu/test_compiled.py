"""Every program compiles for a GPU, by default and otherwise, and wants no more than that has.

The interpreter cannot say so. No GPU is needed: what is compiled is not run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvstore.kernels.gpu.launch import CANDIDATES, Launch, default
from tests.kernels.gpu.compiling import SHARED_BYTES
from tests.tree import ROOT


@dataclass(frozen=True)
class Made:
    """A launch as asked for, and what was compiled for it."""

    program: str
    shape: str
    launch: Launch
    name: str
    warps: int
    shared_bytes: int


def compiled(what: str, cache: Path) -> list[list[Any]]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(cache)
    asked = [sys.executable, "-m", "tests.kernels.gpu.compiling", what]
    ran = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    return [
        Made(program, shape, Launch(*launch), *found)
        for program, shape, *both in compiled("programs", tmp_path_factory.mktemp("compiled"))
        for launch, found in [(both[:3], both[3:])]
    ]


def test_every_program_compiles_as_it_is_launched(made: list[Made]) -> None:
    assert {one.program for one in made} == set(CANDIDATES)
    for program in CANDIDATES:
        launches = {one.launch for one in made if one.program == program}
        assert {default(program), CANDIDATES[program][-1]} <= launches
    assert {one.name for one in made if one.program == "attend"} == {"attend_part", "attend_rows"}
    for one in made:
        assert one.warps == one.launch.warps
        assert one.name.startswith(one.program)


def test_no_program_wants_more_shared_memory_than_there_is(made: list[Made]) -> None:
    for one in made:
        least = one.program != "attend" or one.launch == default("attend")
        assert 0 <= one.shared_bytes <= SHARED_BYTES[89 if least else 90], one


def test_attention_fits_every_gpu_whatever_the_numbers_and_heads(tmp_path: Path) -> None:
    found = compiled("attention", tmp_path)
    assert {one[0] for one in found} == set(SHARED_BYTES)
    for capability, *shape, most, name, shared_bytes in found:
        assert shared_bytes <= most <= SHARED_BYTES[capability], (capability, shape, name)


def test_what_differs_from_call_to_call_compiles_nothing_anew(tmp_path: Path) -> None:
    found = {(name, which) for name, which in compiled("calls", tmp_path)}
    names = {"attend_rows", "attend_part", *CANDIDATES} - {"attend"}
    assert sorted(name for name, _ in found) == sorted(names)


@pytest.mark.parametrize("program", ["gather_strip", "scatter_strip", "verify_strip", "attend"])
def test_more_stages_fetch_further_ahead_and_have_room_for_it(
    made: list[Made], program: str
) -> None:
    shape = next(one.shape for one in made if one.program == program)
    mine = sorted(
        (one.launch.stages, one.shared_bytes)
        for one in made
        if (one.program, one.shape) == (program, shape)
    )
    assert mine[0][0] < mine[-1][0] and mine[0][1] < mine[-1][1]
