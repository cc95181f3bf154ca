"""Run seeds of the simulation: `python -m tests.simulation.seeds --seeds 10000`, on every core.

A seed that fails is printed with what it broke; the same number replays it, alone:
`python -m tests.simulation.seeds --first 123 --seeds 1`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tqdm import tqdm

from tests.simulation.world import World

PIECE = 50  # seeds of one task


@dataclass(frozen=True)
class Outcome:
    """What some seeds came to."""

    seeds: int
    reads: int
    failed: tuple[tuple[int, str], ...]  # seed, and what it broke


def run(first: int, count: int) -> Outcome:
    """Seeds [first, first + count), one after the other."""
    logging.disable(logging.CRITICAL)  # a simulated disk fails all the time
    reads, failed = 0, []
    try:
        with asyncio.Runner() as runner:
            for seed in range(first, first + count):
                try:
                    reads += runner.run(World(seed).run()).reads
                except Exception:
                    failed.append((seed, traceback.format_exc()))
    finally:
        logging.disable(logging.NOTSET)
    return Outcome(count, reads, tuple(failed))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.seeds", description=__doc__)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seeds", type=int, default=2_000, metavar="N")
    args = parser.parse_args()
    began, seeds, reads, failed = time.monotonic(), 0, 0, 0
    ends = range(args.first, args.first + args.seeds, PIECE)
    counts = [min(PIECE, args.first + args.seeds - start) for start in ends]
    with (
        ProcessPoolExecutor(os.cpu_count()) as pool,
        tqdm(total=args.seeds, unit="seed", disable=None) as bar,
    ):
        for outcome in pool.map(run, ends, counts):
            seeds, reads = seeds + outcome.seeds, reads + outcome.reads
            failed += len(outcome.failed)
            bar.update(outcome.seeds)
            for seed, what in outcome.failed:
                print(f"seed {seed} failed:\n{what}", file=sys.stderr)
    rate = seeds / (time.monotonic() - began)
    print(f"{seeds} seeds, {reads} verified reads, {failed} failed, {rate:.0f} seeds a second")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
