"""How many requests a second are served in time, against nine other policies, simulated.

Workloads are a conversation trace, if one is given, and three that are made up; clusters are short
of prefill or of decoding; hosts keep much or little; tokens are wanted at three paces. Everybody
has the same engines, of which nobody knows exactly what they take, and every rival has the gate and
is tuned by its grid for each of these cells. What must hold, over all cells:

- rate at which 90 % are in time: ours to the best rival's, the least;
- the same to any one rival, geometric mean over cells, the least over rivals;
- at 3.5 times that rate: mean time to first token of gated Mooncake's, first come first served, to
  ours, and goodput of ours to its, the least of each;
- share kept, 0.98 of it, where a router thinks that all prefills take 30 % less, or each up to 30 %
  more or less, as a mean over rates about the highest;
- of a rate that nobody can exceed, ours is told beside (no goal);
- share in time of each quartile of prompt length, ours less the best rival's, the least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import goodput_cells
from bench.goodput_cells import CLUSTERS, CONVERSATION, MADE, MEMORY, Cell, Setup
from bench.report import Goal, Report, Row
from bench.traces import BadTrace
from kvstore.errors import ConfigError, Invalid
from kvstore.planner import replay
from kvstore.planner import trace as planner_trace

RUNS = 1  # seeds
TAKES = ("trace", "only")  # options of the command
PROCESSES = 2
GOAL_RATE, GOAL_FIXED, GOAL_TTFT, GOAL_GOODPUT = 1.05, 1.10, 3.0, 1.0
GOAL_KEPT = 0.98  # of a share: two points may be lost
OURS = "ours"


@dataclass(frozen=True, slots=True)
class Compared(Report):
    """With the figures by their names, as they are asked for."""

    cells: tuple[Cell, ...]

    def as_dict(self, machine: Any) -> dict[str, Any]:
        lengths = min(min(one.lengths) for one in self.cells)
        return Report.as_dict(self, machine) | {
            "ratio_rate": ratio_rate(self.cells),
            "ratio_rate_fixed": min(fixed(self.cells).values()),
            "ttft_overload": 1 / ttft_overload(self.cells),
            "goodput_overload": goodput_overload(self.cells),
            "goodput_overload_of_all": goodput_overload_of_all(self.cells),
            "ttft_overload_filled": 1 / ttft_overload_filled(self.cells),
            "bias_cost": max(one.lie_cost for one in self.cells),
            "error_cost": max(one.doubt_cost for one in self.cells),
            "length_gap": lengths,
        }


def run(
    runs: int, say: Callable[[str], None], trace: Path | None = None, only: str | None = None
) -> Report:
    if trace is not None:
        _check(trace)  # or each of the processes would end by it
    chosen = [one for one in setups(trace, runs) if only is None or only in one.name]
    if not chosen:
        raise SystemExit(f"--only {only}: is in no name, as in 'bimodal, 8+8, 250 GB'")
    if trace is None:
        say("no --trace, so without the conversation")
    if not replay.compiled():
        say("compiling the simulator: a minute, once")
        goodput_cells.replay(*_small())
    found: list[Cell] = []
    with _processes() as processes:
        for setup, cells in zip(chosen, processes.map(goodput_cells.cells, chosen), strict=True):
            found += cells
            ratios = ", ".join(f"{_ratio(one):.3f}" for one in cells)
            of_limit = ", ".join(f"{one.rates[OURS] / one.limit:.3f}" for one in cells)
            say(f"{setup.name}: ours to {cells[-1].best_rival} {ratios}; to the limit {of_limit}")
    return Compared(
        name="goodput",
        unit="requests/s",
        against="nine rivals, each tuned and gated, in the same simulation",
        ratio_is="ours to the rival's; of shares, what is kept",
        goal=GOAL_RATE,
        sense=Goal.AT_LEAST,
        rows=(*_verdicts(found), *(_row(one) for one in found)),
        cells=tuple(found),
    )


@contextmanager
def _processes() -> Iterator[ProcessPoolExecutor]:
    """They end with the block: at once where it is left by an exception, as by Ctrl-C, since what
    they are at takes minutes."""
    pool = ProcessPoolExecutor(PROCESSES, get_context("spawn"))
    try:
        yield pool
    except BaseException:
        children = [*pool._processes.values()]
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.terminate()
        for child in children:
            child.join()
        raise
    pool.shutdown()


def setups(trace: Path | None, runs: int) -> Iterable[Setup]:
    for seed in range(1, runs + 1):
        for workload in ([CONVERSATION] if trace else []) + [*MADE]:
            for cluster in CLUSTERS:
                for memory in MEMORY:
                    yield Setup(workload, cluster, memory, seed, trace)


def _small() -> Any:
    setup = Setup("bimodal", "8+8", "250 GB", 1, None)
    load = goodput_cells._load(setup).window(0.0, 5.0)
    return load, goodput_cells._cluster(setup, 0.1), goodput_cells.OURS, 1


def _ratio(cell: Cell) -> float:
    return cell.rates[OURS] / cell.rates[cell.best_rival]


def ratio_rate(cells: Iterable[Cell]) -> float:
    return min(_ratio(one) for one in cells)


def fixed(cells: tuple[Cell, ...]) -> dict[str, float]:
    """For each rival, the geometric mean over cells of ours to its. One that keeps the targets at
    no rate somewhere is infinitely behind."""
    found = {}
    for name in sorted({name for one in cells for name in one.rates} - {OURS}):
        if all(name in one.rates for one in cells):
            logs = [math.log(one.rates[OURS] / one.rates[name]) for one in cells]
            found[name] = math.exp(sum(logs) / len(logs))
    return found


def ttft_overload(cells: Iterable[Cell]) -> float:
    return min(one.overload_mooncake.ttft_s / one.overload.ttft_s for one in cells)


def ttft_overload_filled(cells: Iterable[Cell]) -> float:
    return min(one.overload_mooncake.ttft_filled_s / one.overload.ttft_filled_s for one in cells)


def goodput_overload(cells: Iterable[Cell]) -> float:
    return min(one.overload.goodput_filled / one.overload_mooncake.goodput_filled for one in cells)


def goodput_overload_of_all(cells: Iterable[Cell]) -> float:
    return min(one.overload.goodput / one.overload_mooncake.goodput for one in cells)


def _check(trace: Path) -> None:
    try:
        planner_trace.read(trace)
    except (ConfigError, Invalid) as wrong:
        raise BadTrace(str(wrong)) from None


def _verdicts(found: list[Cell]) -> list[Row]:
    cells = tuple(found)
    worst = min(cells, key=_ratio)
    means = fixed(cells)
    name = min(means, key=lambda one: means[one])
    lie, doubt = max(one.lie_cost for one in cells), max(one.doubt_cost for one in cells)
    length = min(min(one.lengths) for one in cells)
    rows = [
        ("rate, worst cell", _ratio(worst), GOAL_RATE, {"cell": worst.name}),
        (f"rate, mean to {name}", means[name], GOAL_FIXED, {"means": means}),
        ("overload, TTFT of Mooncake's to ours", ttft_overload(cells), GOAL_TTFT, {}),
        ("overload, goodput to Mooncake's", goodput_overload(cells), GOAL_GOODPUT, {}),
        ("predictions 30 % low, share kept", 1 - lie, GOAL_KEPT, {}),
        ("predictions up to 30 % off either way, share kept", 1 - doubt, GOAL_KEPT, {}),
        ("worst quartile of length, against the best rival", 1 + length, GOAL_KEPT, {}),
    ]
    told = [
        Row(name, {}, len(cells), ratio, 1.0, ratio, goal=goal, also=also)
        for name, ratio, goal, also in rows
    ]
    beside = [
        ("overload, goodput from the first request on", goodput_overload_of_all(cells)),
        ("overload, TTFT once lines have filled", ttft_overload_filled(cells)),
    ]
    return told + [
        Row(name, {}, len(cells), ratio, 1.0, ratio, counted=False) for name, ratio in beside
    ]


def _row(cell: Cell) -> Row:
    return Row(
        cell.name if cell.same_as_s is None else f"{cell.name} and {cell.tpot_s * 1e3:.0f} ms",
        {"tpot_s": cell.tpot_s, "seed": cell.seed},
        1,
        cell.rates[OURS],
        cell.rates[cell.best_rival],
        _ratio(cell),
        counted=False,
        also={"best_rival": cell.best_rival, **asdict(cell)},
    )
