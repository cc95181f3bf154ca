"""Mooncake's store beside Moonpool, on the same work in one run: batches put, and gotten back.

Mooncake serves every address of the machine it runs on, so both run in a network of their own that
has `lo` and nothing else: this starts `bench.peers_rounds` there, which measures, and reads its
rows. That takes root, or a system that lets users make namespaces. `make bench-peers` first makes
the environment that Mooncake runs in.

Same host: our client maps the memory of a node in another process; Mooncake uses the faster of its
own two ways, a segment inside the caller's process and one shared with a store process. TCP: either
side's bytes lie in another process and come over a socket of the loopback device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench.guest import NotInstalled
from bench.peers_mooncake import ENVIRONMENT, ROOT
from bench.peers_rounds import GOALS, SIZES
from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.cli import parent

RUNS = 30
GOAL = 1.0
END_SECONDS = 30.0
INSIDE = 'ip link set lo up && exec "$0" "$@"'


def run(runs: int, _: Callable[[str], None], sizes: tuple[int, ...] = SIZES) -> Report:
    if not (ENVIRONMENT / "bin" / "mooncake_master").exists():
        raise NotInstalled(f"{ENVIRONMENT} is not there: `make bench-peers` makes it")
    _try_namespace()
    rows: list[Row] = []
    for transport in GOALS:
        rows += _rows(transport, runs, sizes)
    return Report(
        name="peers",
        unit="ms",
        against="Mooncake's store, batched and zero-copy, in the same rounds",
        ratio_is="Mooncake's time / ours",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


def _rows(transport: str, runs: int, sizes: tuple[int, ...]) -> list[Row]:
    asked = ["--runs", str(runs), "--transport", transport, "--sizes", *map(str, sizes)]
    rounds = subprocess.Popen(
        [*_unshared(), sys.executable, "-m", "bench.peers_rounds", *asked],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=parent.environment(),
        start_new_session=True,  # Ctrl-C reaches this one alone, which ends it in order
    )
    try:
        said, _ = rounds.communicate()
    finally:
        _end(rounds)
    if rounds.returncode:
        raise RuntimeError(f"the rounds over {transport} ended with {rounds.returncode}")
    return [_row(json.loads(line)) for line in said.splitlines()]


def _end(rounds: subprocess.Popen[str]) -> None:
    """Its nodes stop and its directories go, if it has time for that."""
    rounds.terminate()
    try:
        rounds.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        rounds.kill()
        rounds.wait()
    assert rounds.stdout is not None
    rounds.stdout.close()


def _row(said: dict[str, Any]) -> Row:
    return Row(**{**said, "spread": Spread(**said["spread"])})


def _unshared() -> list[str]:
    """What runs a command in a network of its own. Without root it is root of that only."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", "--net", *user, "--", "sh", "-c", INSIDE]


def _try_namespace() -> None:
    ran = subprocess.run([*_unshared(), "true"], capture_output=True, text=True)
    if ran.returncode:
        raise NotInstalled(
            "Mooncake serves every address it finds, so it runs in a network namespace with `lo` "
            f"alone; none can be made here: {ran.stderr.strip()}. Run it as root"
        )
