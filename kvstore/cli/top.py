"""`moonpool top`: what the dashboard shows, in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from contextlib import suppress

from kvstore.cli.options import Commands, command
from kvstore.dashboard.panels import PANELS, VLLM_PANELS
from kvstore.dashboard.units import written
from kvstore.dashboard.watch import TICK_SECONDS, Watch

_CLEAR = "\x1b[H\x1b[2J"


def add(commands: Commands) -> None:
    top = command(
        commands,
        "top",
        "show what a pool's processes do, every other second, until Ctrl-C",
        "moonpool top 127.0.0.1:9401 127.0.0.1:9402 127.0.0.1:9404",
    )
    top.add_argument(
        "metrics", nargs="+", metavar="HOST:PORT", help="a process's --metrics; any number of them"
    )
    top.add_argument(
        "--once", action="store_true", help="print once, after two looks, and no control codes"
    )
    top.add_argument("--json", action="store_true", help="print once, as JSON")
    top.set_defaults(run=run_top)


def run_top(args: argparse.Namespace) -> int:
    watch = Watch(args.metrics)
    return asyncio.run(_run(watch, args))


async def _run(watch: Watch, args: argparse.Namespace) -> int:
    keeping = asyncio.create_task(watch.keep())
    try:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if keeping.done():
                keeping.result()
            if len(watch.history.times) < 2:
                continue
            if args.json:
                print(json.dumps({"charts": watch.history.last, "processes": watch.processes()}))
            elif args.once:
                print(text(watch, shutil.get_terminal_size().columns))
            else:
                print(_CLEAR + text(watch, shutil.get_terminal_size().columns), flush=True)
                continue
            silent = all(one["silent"] for one in watch.processes())
            return 1 if silent else 0
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


def text(watch: Watch, columns: int) -> str:
    """A line for each chart that has something to show, and for each process."""
    every = (*PANELS, *VLLM_PANELS)
    lines, wide = [], max(len(panel.title) for panel in every)
    for panel in every:
        found = watch.history.last.get(panel.key, {})
        told = [f"{name} {written(panel.unit, value)}".strip() for name, value in found.items()]
        if told:
            lines.append(f"{panel.title:<{wide}}  {'   '.join(told)}"[:columns])
    for one in watch.processes():
        state = one["silent"].removeprefix(f"{one['address']}: ") or "answers"
        lines.append(f"{one['process'] or '?':<{wide}}  {one['address']}  {state}"[:columns])
    return "\n".join(lines)
