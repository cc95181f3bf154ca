"""`python -m bench NAME`: runs a bench and prints what it found, last of all as one line of JSON.

Progress goes to stderr. A goal that is missed is a finding and no failure, so the exit code is 0
unless --check is given. It is 1 too where a bench fails, and 2 where the one that is asked for
cannot run here.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import machine
from bench.guest import NotInstalled
from bench.traces import BadTrace

BENCHES = {
    "local": "a same-host get of 64 blocks of 1 MiB, verified, against memcpy (at least 0.80)",
    "strips": "strips hashed between pages and slots, one thread, against memcpy (at least 0.70)",
    "tcp": "a get of 64 blocks of 1 MiB over TCP, verified, against plain sockets (at least 0.85)",
    "ucx": "blocks pulled over UCX's shared memory, verified, against bare NIXL (at least 0.90)",
    "full": "a put into a full pool, against one where there is room (at most 1.5)",
    "publish": "a prefill that publishes its KV layer by layer, against one alone (at most 1.03)",
    "overlap": "the share of a hand-off's transfer hidden behind its prefill (at least 0.90)",
    "verify": "verification's share of a same-host fetch, Llama-8B geometry (at most 0.35)",
    "noreuse": "vLLM's throughput with the connector and nothing to reuse (at least 0.98)",
    "warm": "vLLM's time to first token with a warm pool, and with a slow one (at most 1.05)",
    "ssd": "writing and reading the SSD tier's files, against fio (at least 0.85)",
    "eviction": "hits of the node's eviction on a --trace, against LRU's (at least 0.99)",
    "placement": "the share of a --trace's hits that DRAM has, against LRU's (at least 1.0)",
    "peers": "batched puts and gets beside Mooncake's store, same host and TCP (at least 1.0)",
    "follow": "a new conductor's way to knowing 5,000,000 blocks of a node (at most 10 s)",
    "index": "a conductor's index of 10,000,000 blocks: queries/s (500,000), bytes (at most 24)",
    "schedule": "requests that a conductor of 1,000 nodes decides a second (10,000), p99 (1 ms)",
    "route": "real engines' TTFT and hit rate by Schedule, against round-robin (at most 1.0)",
    "servers": "vLLM servers' TTFT and hit rate by Schedule, against round-robin (at most 1.0)",
    "serve": "RSS after 10,000 requests of 64 clients through a gateway, none lost (at most 1.10)",
    "codec": "what codecs do to a model's next token, and cost; none must change none (1.0)",
    "goodput": "simulated requests/s in time, against nine policies at their best (at least 1.05)",
    "simulate": "a million requests planned for on 1,000 engines, one core (at most 60 s)",
    "prefix": "time to first token of a prompt in DRAM and on SSD, against computing (at most 1.0)",
    "kernels": "gather and scatter of paged KV on a GPU, against copying there (at least 0.85)",
    "attention": "decode over pages on a GPU, against its bytes' time there (at most 1.2)",
    "tokens": "an engine's greedy tokens on a GPU, against those of transformers there (1.0)",
    "tune": "launches of a GPU's kernels, against the default ones there (at least 1.0)",
    "hbm": "KV between a GPU's pages and pinned memory, against cudaMemcpyAsync (at least 0.95)",
    "recovery": "a node's restart to serving with 500,000 blocks on SSD (at most 5 s)",
}
OPTIONS = ("trace", "blocks", "only", "requests", "write")  # of some benches alone
NEED_A_FILE = {"eviction", "placement", "goodput"}  # so `all` goes without
RESULTS = Path(__file__).resolve().parent / "results"

EPILOG = """\
the JSON:
  rows[].value    median of what is measured, in `unit`
  rows[].limit    median of what it is held against, in `unit`
  rows[].ratio    of the two, as `ratio_is` says; `spread` is of the ratio in each single round
  rows[].counted  whether the row decides
  rows[].goal     its own, where it differs from the report's
  ratio, holds    of the worst counted row, and whether it is on the right side of `goal`

example: python -m bench local --runs 20
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.name == "all":
        return _run_all(args)
    takes = getattr(_bench(args.name), "TAKES", ())
    for option in OPTIONS:
        if option not in takes and getattr(args, option):
            parser.error(f"{args.name} takes no --{option}")
    try:
        held = _run(args.name, args)
    except (NotInstalled, BadTrace) as wrong:
        _say(args.name, str(wrong))
        return 2
    return 1 if args.check and not held else 0


def _run_all(args: argparse.Namespace) -> int:
    """One that fails, or cannot run here, keeps none from running."""
    held, failed = True, False
    for name in [name for name in BENCHES if name not in NEED_A_FILE]:
        try:
            held &= _run(name, args)
        except NotInstalled as missing:
            _say(name, str(missing))
            held = False
        except Exception:
            traceback.print_exc()
            failed = True
    return 1 if failed or (args.check and not held) else 0


def _bench(name: str) -> Any:
    return importlib.import_module(f"bench.{name}")  # late: some need torch, some do not


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _run(name: str, args: argparse.Namespace) -> bool:
    bench, say = _bench(name), partial(_say, name)
    say("starting")
    given = {option: getattr(args, option) for option in getattr(bench, "TAKES", ())}
    report = bench.run(args.runs or bench.RUNS, say, **given)
    line = report.line(machine.facts())
    if not args.json:
        print(report.table())
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}-{time.strftime('%Y%m%d')}.json"
        path.write_text(line + "\n")
        say(f"written to {path}")
    print(line, flush=True)
    return bool(report.holds)


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, BENCHES)) + 2
    listed = "\n".join(f"  {name:<{width}}{what}" for name, what in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"benches, each against what the machine can do:\n{listed}\n"
        f"  {'all':<{width}}every one that needs no file, one line of JSON each",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=[*BENCHES, "all"], help="which to run")
    parser.add_argument("--json", action="store_true", help="no table, only the JSON")
    parser.add_argument("--runs", type=_runs, metavar="N", help="rounds (default: each its own)")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="eviction, placement, goodput: the trace"
    )
    parser.add_argument(
        "--blocks",
        type=_sizes,
        metavar="N,N",
        help="how many blocks there are, or may be: eviction, placement, recovery, follow, index "
        "and schedule",
    )
    parser.add_argument(
        "--only",
        metavar="TEXT",
        help="goodput: only what has it in its name, as in 8+8; publish: cpu or cuda alone",
    )
    parser.add_argument(
        "--requests",
        type=_requests,
        metavar="N",
        help="simulate and serve: how many (default: a million, and 10,000)",
    )
    parser.add_argument(
        "--write", action="store_true", help="tune: put what won into kernels/gpu/launches.json"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument(
        "--save", action="store_true", help="also write bench/results/NAME-YYYYMMDD.json"
    )
    return parser


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of rounds: 1 or more")
    return int(text)


def _requests(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of requests: 1 or more")
    return int(text)


def _sizes(text: str) -> list[int]:
    found = text.split(",")
    if not all(one.isdecimal() and int(one) for one in found):
        raise argparse.ArgumentTypeError(f"{text} is no list of numbers like 1000,3000")
    return [int(one) for one in found]


if __name__ == "__main__":
    # Like Ctrl-C: a bench that is told to end stops its node and removes its directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
