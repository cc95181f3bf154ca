"""How the programs of `kernels/gpu` are best launched on this GPU, and the table that says so.

Every candidate of every program is tried first: one that this device cannot launch is left out, and
so is one that does not make what the default makes. The others take turns, each launch timed by the
device's own clock, right behind another of the same, so that the host is ahead of the device. The
default stays unless it is beaten by more than the rounds differ. All of a program are compiled side
by side before the first of them is timed, on as many threads as there are processors. With
`--write` what won is written to `kernels/gpu/launches.json`, for this device. Takes a CUDA GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bench.guest import NotInstalled
from bench.report import Goal, Report, Row
from bench.rounds import Way, measure

if TYPE_CHECKING:
    from bench.launched import Sizes, Task
    from kvstore.kernels.gpu.launch import Launch

RUNS = 15
GOAL = 1.0
SECONDS = 120.0  # after which nothing more is begun; compiling takes most of them
TAKES = ("write",)  # options of the command


@dataclass(frozen=True, slots=True)
class Found:
    report: Report
    launches: Mapping[tuple[str, str], Launch]  # those that won, by program and shape


def run(
    runs: int, say: Callable[[str], None], sizes: Sizes | None = None, write: bool = False
) -> Report:
    if not torch.cuda.is_available():
        raise NotInstalled("a CUDA GPU is needed, and torch sees none here")
    # Late: Triton is for machines with a GPU.
    import triton

    from bench.kernels import behind_another
    from bench.launched import Sizes
    from kvstore.kernels.gpu.launch import CANDIDATES
    from kvstore.kernels.gpu.launch_table import PATH, Tuned, formatted, parsed
    from kvstore.kernels.gpu.tuned import device_name

    device = torch.device("cuda", torch.cuda.current_device())
    known = parsed(PATH.read_text()) if write else {}  # or it raises before minutes have passed
    found = measured(runs, say, sizes or Sizes(), device, behind_another, CANDIDATES)
    if write:
        command = f"python -m bench tune --runs {runs} --write"
        versions = (torch.__version__, triton.__version__)
        tuned = Tuned(*versions, command, time.strftime("%Y-%m-%d"), found.launches)
        PATH.write_text(formatted({**known, device_name(device): tuned}))
        say(f"written to {PATH}")
    return found.report


def measured(
    runs: int,
    say: Callable[[str], None],
    sizes: Sizes,
    device: torch.device,
    timed: Callable[[Callable[[], object]], Way],
    candidates: Mapping[str, Sequence[Launch]],
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    from bench.launched import tasks

    until = clock() + SECONDS
    rows, launches = [], {}
    for task in tasks(sizes, device):
        name = f"{task.program}, {task.shape}"
        if clock() > until:
            say(f"{name}: not measured, {SECONDS:.0f} s are over")
            continue
        say(f"{name}: {len(candidates[task.program])} candidates")
        if device.type == "cuda":  # the interpreter is one for all threads
            compiled(task, candidates[task.program])
        row, won = _contest(task, candidates[task.program], runs, say, timed)
        rows.append(row)
        if won != candidates[task.program][0]:
            launches[task.program, task.shape] = won
    report = Report(
        name="tune",
        unit="ms",
        against="the default launch of the same program",
        ratio_is="default's time / chosen one's",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )
    return Found(report, launches)


def compiled(task: Task, candidates: Sequence[Launch]) -> None:
    """Each is launched once; what comes of it is looked at when it is launched alone."""
    from triton.runtime.errors import OutOfResources, PTXASError

    torch.cuda.synchronize()  # before other threads, on streams that may be others, read what is

    def once(launch: Launch) -> None:
        with suppress(OutOfResources, PTXASError):
            task.act(launch)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(once, candidates))
    torch.cuda.synchronize()


def _contest(
    task: Task,
    candidates: Sequence[Launch],
    runs: int,
    say: Callable[[str], None],
    timed: Callable[[Callable[[], object]], Way],
) -> tuple[Row, Launch]:
    from bench.winners import winner

    sound = sound_ones(task, candidates, say)
    ways = {str(one): timed(lambda one=one: task.act(one)) for one in sound}
    rounds = measure(ways, runs, say)
    default, won = str(sound[0]), winner(sound, rounds)
    row = Row(
        name=f"{task.program}, {task.shape}: {won}",
        sizes={"program": task.program, "shape": task.shape, "candidates": len(sound)},
        runs=rounds.count,
        value=1e3 * rounds.median(str(won)),
        limit=1e3 * rounds.median(default),
        ratio=rounds.ratio(default, str(won)),
        spread=rounds.spread(default, str(won)),
        also={"default": default, "ms": {way: 1e3 * rounds.median(way) for way in ways}},
    )
    return row, won


def sound_ones(
    task: Task, candidates: Sequence[Launch], say: Callable[[str], None]
) -> list[Launch]:
    """Those that this device launches, and that make what the first of them, the default, makes.
    It is launched last again, since what follows may read what it has made."""
    from triton.runtime.errors import OutOfResources, PTXASError

    default, *others = candidates
    wanted = tuple(one.clone() for one in task.made(default))
    sound = [default]
    for launch in others:
        try:
            made = task.made(launch)
        except (OutOfResources, PTXASError) as error:
            say(f"{task.program}, {launch}: not on this device: {error}")
            continue
        if task.same(wanted, made):
            sound.append(launch)
        else:
            say(f"{task.program}, {launch}: makes something else than {default}; left out")
    task.made(default)
    return sound
