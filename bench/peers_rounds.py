"""Both peers take turns at the same work, in a network that has `lo` and nothing else.

Run by `bench.peers`, as `python -m bench.peers_rounds`, in such a network; refuses any other. Says
what it found as rows, one line of JSON each. In each round either peer puts a batch and then gets
it into other memory; what was put is removed before the next, off the clock, as is the comparison
of every byte. Mooncake runs with whichever of its settings was fastest in a trial at that size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers_mooncake import SETTINGS, Mooncake, Setting
from bench.peers_ours import KV_HEADS, Moonpool, Shape
from bench.pool import running_node
from bench.report import Row
from bench.rounds import Rounds, measure
from kvstore.cli import parent
from kvstore.limits import KiB, MiB

DRAM, SLAB = "512MiB", "32MiB"
SIZES = (4 * KiB, 64 * KiB, 256 * KiB, 1 * MiB, 4 * MiB)
BATCH_BYTES, BATCH_MIN, BATCH_MAX = 64 * MiB, 16, 1_024
SINGLES = 16  # calls with one object each, per round
TRIALS = 5
COUNTED_BYTES_MIN = 64 * KiB
GOAL_BYTES = 1 * MiB  # the size that has a goal of its own, one for each transport
GOALS = {"same host": 1.3, "tcp": 1.5}
OURS = {"same host": "shm", "tcp": "tcp"}


def batch(size: int) -> int:
    """How many objects of this size one call moves."""
    return max(BATCH_MIN, min(BATCH_MAX, BATCH_BYTES // size))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers_rounds")
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--transport", choices=[*GOALS], required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, metavar="BYTES")
    args = parser.parse_args()
    parent.heed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if (found := _devices()) != ["lo"]:
        print(f"this network has {', '.join(found)}: Mooncake would serve it", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as directory:
        for size in args.sizes:
            log = Path(directory) / f"mooncake-{size}.log"
            for row in _rows(args.transport, size, args.runs, log):
                print(json.dumps(asdict(row)), flush=True)
    return 0


def _say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def _devices() -> list[str]:
    """Of the network this process is in."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines]


def _rows(transport: str, size: int, runs: int, log: Path) -> Iterator[Row]:
    count, shape = batch(size), Shape.of(size)
    tried = {setting.name: _trial(setting, size, log) for setting in SETTINGS[transport]}
    best = min(SETTINGS[transport], key=lambda one: tried[one.name])
    _say(f"{transport}, {count} of {size // KiB} KiB, Mooncake with {best.name}")
    with (
        running_node(DRAM, SLAB) as directory,
        Moonpool.at(directory, shape, count, transport=OURS[transport]) as ours,
        Mooncake(best, log) as theirs,
    ):
        theirs.ask(prepare={"size": size, "count": count})
        rounds = _measure(ours, theirs, runs)
    facts = {
        "object_bytes": size,
        "objects": count,
        "kv_heads": KV_HEADS,
        "layers": shape.layers,
        "block_tokens": shape.tokens,
        "strip_bytes": shape.strip_bytes,
        "mooncake": best.name,
    }
    for what in ("put", "get", "single put", "single get"):
        moved = size if what.startswith("single") else size * count
        yield _row(f"{transport}: {what}, {size // KiB} KiB", what, facts, moved, rounds, tried)


def _trial(setting: Setting, size: int, log: Path) -> float:
    """Milliseconds of a batch's put and get with this setting: the fastest of each."""
    with Mooncake(setting, log) as store:
        store.ask(prepare={"size": size, "count": batch(size)})
        took: dict[str, list[float]] = {"put": [], "get": []}
        for number in range(TRIALS):
            for what, seconds in took.items():
                seconds.append(store.ask(**{what: {"batch": f"trial-{number}"}}))
            store.ask(forget={})
        return 1e3 * sum(map(min, took.values()))


def _measure(ours: Moonpool, theirs: Mooncake, runs: int) -> Rounds:
    """Rounds of both, in turns. Every byte is compared when they begin and when they are over."""
    batches = itertools.count()
    now = {"batch": "", "singly": ""}

    def before(number: int) -> None:
        ours.forget()
        theirs.ask(forget={})
        now.update(batch=f"b{next(batches)}", singly=f"s{next(batches)}")
        if number <= 0:
            _check(ours, theirs, f"c{next(batches)}")

    ways: dict[str, Callable[[], float]] = {}
    for what in ("put", "get"):
        ways[f"our {what}"] = lambda what=what: getattr(ours, what)(now["batch"])
        ways[f"their {what}"] = lambda what=what: theirs.ask(**{what: {"batch": now["batch"]}})
    for what in ("put", "get"):
        ways[f"our single {what}"] = lambda what=what: getattr(ours, f"{what}_singly")(
            now["singly"], SINGLES
        )
        ways[f"their single {what}"] = lambda what=what: theirs.ask(
            **{f"{what}_singly": {"batch": now["singly"], "count": SINGLES}}
        )
    rounds = measure(ways, runs, _say, before=before)
    _check(ours, theirs, "last")
    return rounds


def _check(ours: Moonpool, theirs: Mooncake, batch: str) -> None:
    """What either gets is what it put: its target is spoilt before, and compared after."""
    ours.put(batch)
    ours.spoil()
    ours.get(batch)
    ours.check()
    ours.forget()
    theirs.ask(put={"batch": batch})
    theirs.ask(spoil={})
    theirs.ask(get={"batch": batch})
    theirs.ask(check={})
    theirs.ask(forget={})


def _row(
    name: str,
    what: str,
    facts: dict[str, Any],
    moved: int,
    rounds: Rounds,
    tried: dict[str, float],
) -> Row:
    size = facts["object_bytes"]
    mine, other = f"our {what}", f"their {what}"
    return Row(
        name=name,
        sizes=facts,
        runs=rounds.count,
        value=1e3 * rounds.median(mine),
        limit=1e3 * rounds.median(other),
        ratio=rounds.ratio(other, mine),
        spread=rounds.spread(other, mine),
        counted=size >= COUNTED_BYTES_MIN and not what.startswith("single"),
        goal=GOALS[name.partition(":")[0]] if size == GOAL_BYTES else None,
        also={
            "gb_per_second": moved / rounds.median(mine) / 1e9,
            "mooncake_gb_per_second": moved / rounds.median(other) / 1e9,
            "mooncake_trial_ms": tried,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
