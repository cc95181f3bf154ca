"""`moonpool demo`: a real pool with real engines, a workload, and what came of it."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from kvstore.cli.options import Commands, check_output, command, share_cores


def add(commands: Commands) -> None:
    demo = command(
        commands,
        "demo",
        "start a node and two engines, run a workload with and without the pool, report",
        "moonpool demo --json demo.json\n"
        "  moonpool demo --quick --keep      and look at the dashboard",
    )
    demo.add_argument("--model", type=Path, metavar="DIR", help="default: a small random model")
    demo.add_argument("--seed", type=int, default=0, help="of the workload (default: %(default)s)")
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    demo.add_argument("--quick", action="store_true", help="a sixth of the workload")
    demo.add_argument(
        "--keep",
        action="store_true",
        help="send the workload through a gateway too, and then keep all running until Ctrl-C: its "
        "dashboard shows what came of it",
    )
    demo.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.json is not None:
        check_output("--json", args.json)
    share_cores()
    # torch and transformers come with the extra `engine`; no other command pays for them.
    from kvstore.cli.demo.run import run_demo

    # Asked to end, it stops what it started and leaves no folder behind, as on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="moonpool-demo-") as directory:
        return run_demo(args, Path(directory))
