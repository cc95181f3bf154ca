"""Tuning, of programs in the interpreter and by a clock that a test sets: what wins is as said."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported

from triton.runtime.errors import OutOfResources

from bench import __main__ as command
from bench import launched, rounds, tune
from bench.launched import Sizes, Task, tasks
from bench.rounds import Way
from kvstore.kernels.gpu import launch_table, tuned
from kvstore.kernels.gpu.attention import Span
from kvstore.kernels.gpu.launch import CANDIDATES, Launch
from kvstore.kernels.gpu.launch_table import formatted, parsed

CPU = torch.device("cpu")
TINY = Sizes(
    bytes=1 << 10,
    layers=1,
    block_tokens=(2,),
    dims=(16,),
    decode=(1, Span(1, 520)),  # in two parts
    prefill=(1, Span(5, 20)),
    dtype=torch.float32,
)
TWO = {program: (every[0], every[-1]) for program, every in CANDIDATES.items()}


def quiet(_: str) -> None:
    pass


def clock_of(quick: Callable[[Launch], bool]) -> Callable[[Callable[[], object]], Way]:
    """A clock by which these launches take half of what others do. Each is done, all the same."""

    def timed(act: Any) -> Way:
        def once() -> float:
            act()
            return 0.5 if quick(act.__defaults__[0]) else 1.0

        return once

    return timed


def test_every_program_is_tuned_and_what_is_quicker_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a run on a GPU does, but for the GPU, and for rounds that warm it up."""
    monkeypatch.setattr(rounds, "WARM_ROUNDS", 0)
    last = {every[-1] for every in TWO.values()}
    timed = clock_of(lambda one: one in last)
    found = tune.measured(1, quiet, TINY, CPU, timed, TWO, clock=lambda: 0.0)
    assert {program for program, _ in found.launches} == set(CANDIDATES)
    assert all(launch == TWO[program][-1] for (program, _), launch in found.launches.items())
    assert len(found.report.rows) == len(found.launches), "each row is of a shape of its own"
    for row in found.report.rows:
        assert row.ratio == 2.0 and row.value == 500.0 and row.limit == 1000.0
        assert row.also["ms"].keys() == set(map(str, TWO[row.sizes["program"]]))
    assert found.report.holds


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks that there are; they do nothing."""
    found = [Task("enter_strip", shape, lambda _: ()) for shape in ("short", "long", "longer")]
    monkeypatch.setattr(launched, "tasks", lambda sizes, device: iter(found))
    return found


def test_where_nothing_is_quicker_the_defaults_stay_and_nothing_is_to_be_written(
    some: list[Task],
) -> None:
    found = tune.measured(3, quiet, TINY, CPU, clock_of(lambda _: False), CANDIDATES)
    assert found.launches == {} and found.report.ratio == 1.0
    assert [row.sizes["shape"] for row in found.report.rows] == ["short", "long", "longer"]
    assert found.report.rows[0].sizes["candidates"] == len(CANDIDATES["enter_strip"])
    assert found.report.rows[0].name == "enter_strip, short: block 256, warps 1, stages 1"


def test_once_the_time_is_over_nothing_more_is_begun(some: list[Task]) -> None:
    said: list[str] = []
    clock = itertools.count(0.0, tune.SECONDS / 2).__next__
    found = tune.measured(1, said.append, TINY, CPU, clock_of(lambda _: False), TWO, clock)
    assert [row.sizes["shape"] for row in found.report.rows] == ["short", "long"]
    assert said[-1] == "enter_strip, longer: not measured, 120 s are over"


def test_shapes_are_those_that_a_real_run_is_looked_up_by() -> None:
    """Of the real sizes, without their memory."""
    small = Sizes(bytes=1, layers=1, decode=(1, Span(1, 20)), prefill=(1, Span(33, 20)))
    shapes: dict[str, list[str]] = {}
    for task in tasks(small, CPU):
        shapes.setdefault(task.program, []).append(task.shape)
    strips = ["strips to 8 KiB", "strips to 32 KiB", "longer strips"]
    tiles = [f"words of {word}, {strip}" for strip in strips for word in (8, 2)]
    groups = [f"{codec}, items of 2, to 2048" for codec in ("fp8", "int8")]
    heads = [f"items of 2, heads of {dim}" for dim in (128, 64)]
    decode = [f"{one}, 16 rows, pages of 16" for one in heads]
    assert shapes == {
        **dict.fromkeys(("gather_tile", "scatter_tile"), tiles),
        **dict.fromkeys(("gather_strip", "scatter_strip", "verify_strip", "enter_strip"), strips),
        **dict.fromkeys(("encode_group", "decode_group"), groups),
        "attend": [
            *decode,
            *(f"{one}, more rows, pages of 16" for one in heads),
            f"{heads[0]}, 16 rows, smaller pages",
        ],
        "join_parts": decode,
    }


def test_what_cannot_be_launched_here_or_makes_something_else_does_not_take_part() -> None:
    good, large, wrong, idle = Launch(4), Launch(1), Launch(2), Launch(8)
    made = torch.zeros(3)
    order: list[Launch] = []

    def act(launch: Launch) -> tuple[torch.Tensor, ...]:
        order.append(launch)
        if launch == large:
            raise OutOfResources(9, 8, "shared memory")
        if launch != idle:
            made[:] = 2.0 if launch == wrong else 1.0
        return (made,)

    said: list[str] = []
    task = Task("enter_strip", "any", act, (made,))
    assert tune.sound_ones(task, [good, idle, large, wrong], said.append) == [good]
    assert order[-1] == good and made.tolist() == [1.0] * 3, "what follows finds what it made"
    reasons = ("makes something else", "not on this device", "makes something else")
    assert [why in line for why, line in zip(reasons, said, strict=True)] == [True] * 3


def test_bits_are_compared_where_nothing_else_is_said() -> None:
    one, other = (torch.tensor([0.0]),), (torch.tensor([-0.0]),)
    exact, near = (Task("attend", "any", lambda _: one, near=near) for near in (None, 1e-6))
    assert not exact.same(one, other) and near.same(one, other)
    assert not near.same(one, (torch.tensor([1e-3]),))
    assert not near.same(one, (torch.tensor([float("nan")]),))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, some: list[Task]) -> Path:
    """The table of a machine on which torch sees a GPU."""
    path = tmp_path / "launches.json"
    path.write_text(formatted({}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch_table, "PATH", path)
    monkeypatch.setattr(tuned, "device_name", lambda device: "Some GPU, 9.0")
    measured, last = tune.measured, {every[-1] for every in TWO.values()}

    def here(runs: int, say: Any, sizes: Any, device: Any, timed: Any, candidates: Any) -> Any:
        assert device == torch.device("cuda", 0) and candidates is CANDIDATES
        return measured(runs, say, TINY, CPU, clock_of(lambda one: one in last), TWO)

    monkeypatch.setattr(tune, "measured", here)
    return path


def test_what_won_is_written_when_asked_for_and_other_devices_stay(
    gpu: Path, some: list[Task], capsys: pytest.CaptureFixture[str]
) -> None:
    before = gpu.read_text()
    assert command.main(["tune", "--json"]) == 0
    assert gpu.read_text() == before
    other = launch_table.Tuned("2.12.0", "3.8.0", "", "", {})
    gpu.write_text(formatted({"A GPU, 8.0": other}))
    assert command.main(["tune", "--json", "--runs", "7", "--write"]) == 0
    found = parsed(gpu.read_text())
    assert found.keys() == {"A GPU, 8.0", "Some GPU, 9.0"} and found["A GPU, 8.0"] == other
    mine = found["Some GPU, 9.0"]
    assert mine.command == "python -m bench tune --runs 7 --write"
    assert mine.torch == torch.__version__ and len(mine.date) == len("2026-11-26")
    won = CANDIDATES["enter_strip"][-1]
    assert mine.launches == {("enter_strip", one.shape): won for one in some}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["name"] == "tune"


def test_a_damaged_table_is_found_before_anything_is_measured(
    gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.write_text("{")
    monkeypatch.setattr(tune, "measured", lambda *_: pytest.fail("it measured"))
    with pytest.raises(launch_table.BadTable):
        tune.run(1, quiet, write=True)
    assert gpu.read_text() == "{"
