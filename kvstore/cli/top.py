"""`moonpool top`: what the dashboard shows, in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress

from kvstore.cli.options import Commands, command
from kvstore.dashboard.panels import PANELS, VLLM_PANELS
from kvstore.dashboard.units import written
from kvstore.dashboard.watch import TICK_SECONDS, Watch

_CLEAR = "\x1b[H\x1b[2J"
_BETWEEN = "   "  # two figures


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
    before, after = (_CLEAR, "") if sys.stdout.isatty() else ("", "\n")
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
                print(before + text(watch, shutil.get_terminal_size().columns) + after, flush=True)
                continue
            silent = all(one["silent"] for one in watch.processes())
            return 1 if silent else 0
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


def text(watch: Watch, columns: int) -> str:
    """Some lines for each chart that has something to show, and one for each process. No figure is
    cut: half of one would be another."""
    every = (*PANELS, *VLLM_PANELS)
    lines: list[str] = []
    wide = max(len(panel.title) for panel in every)
    for panel in every:
        found = watch.history.last.get(panel.key, {})
        told = [f"{name} {written(panel.unit, value)}".strip() for name, value in found.items()]
        if told:
            lines += _folded(panel.title, told, wide, columns)
    for one in watch.processes():
        state = one["silent"].removeprefix(f"{one['address']}: ") or "answers"
        lines += _folded(one["process"] or "?", [f"{one['address']}  {state}"], wide, columns)
    return "\n".join(lines)


def _folded(head: str, told: list[str], wide: int, columns: int) -> Iterator[str]:
    """What is told behind the head, on as many lines as it takes; below it in few columns."""
    indent = wide + 2
    line = f"{head:<{indent}}"
    if indent + max(map(len, told)) > columns:
        yield head
        indent, line = 2, "  "
    empty = True
    for one in told:
        if not empty and len(line) + len(_BETWEEN) + len(one) > columns:
            yield line
            line, empty = " " * indent, True
        line += one if empty else _BETWEEN + one
        empty = False
    yield line
