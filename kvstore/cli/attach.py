"""`moonpool attach`: what a pool would bring servers that have none, by reading what they tell."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvstore.cli.options import Commands, command
from kvstore.planner import presets

_TEACHING = """\
Watch vLLM or SGLang servers for some minutes and say what their prefix caches had, why what
they had not was not there, and what a pool of some size would have added. Nothing
is installed on them: it reads the KV events that they publish, and /metrics. No
token of theirs is kept or sent on. Ctrl-C ends it early, with the report.

The servers have to publish. vLLM: --kv-events-config '{"enable_kv_cache_events": true,
"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'. SGLang: --enable-metrics
--kv-events-config '{"publisher": "zmq", "endpoint": ..., "replay_endpoint": ...}'.
"""
_MINUTES, _FABRIC = 10.0, "rdma-200"


def add(commands: Commands) -> None:
    attach = command(
        commands,
        "attach",
        "what a pool would bring servers that have none, by reading what they tell",
        "moonpool attach --engine http://10.0.0.1:8000,kv=tcp://10.0.0.1:5557,"
        "replay=tcp://10.0.0.1:5558 \\\n    --dram 64GiB --model llama-3-8b --minutes 10",
    )
    attach.description = _TEACHING
    attach.add_argument(
        "--engine",
        action="append",
        required=True,
        metavar="URL,kv=ENDPOINT[,replay=ENDPOINT][,topic=TEXT]",
        help="a server, and where it publishes its KV events; given once for each",
    )
    attach.add_argument(
        "--minutes", type=float, default=_MINUTES, metavar="N", help="(default %(default)g)"
    )
    attach.add_argument("--dram", metavar="SIZE", help="of the pool to tell of, of all hosts")
    attach.add_argument("--ssd", metavar="SIZE", help="likewise (default none)")
    attach.add_argument(
        "--model",
        metavar="NAME",
        help=f"for the size of KV: one of {', '.join(presets.MODELS)}, or a folder with a model's"
        " config.json",
    )
    attach.add_argument(
        "--kv-bytes-per-token", type=int, metavar="N", help="the same, of any other model"
    )
    attach.add_argument(
        "--fabric",
        default=_FABRIC,
        metavar="NAME",
        help=f"what blocks are fetched over: one of {', '.join(presets.LINKS)} (default {_FABRIC})",
    )
    attach.add_argument(
        "--before",
        type=Path,
        metavar="FILE",
        help="what --json said before there was a pool, to hold against what one brings now",
    )
    how_long = attach.add_mutually_exclusive_group()
    how_long.add_argument(
        "--requests",
        type=Path,
        metavar="FILE",
        help="a log of the requests of this time, read at its end: JSON lines with prompt_tokens",
    )
    how_long.add_argument(
        "--trace", type=Path, metavar="FILE", help="the trace that is played, as `plan` reads it"
    )
    attach.add_argument("--json", action="store_true", help="one JSON object")
    attach.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from kvstore.cli import attach_run

    return attach_run.run(args)
