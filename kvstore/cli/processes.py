"""`moonpool node`, `moonpool engine`, `moonpool up`: the processes that serve."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from kvstore.cli.options import Commands, add_directory, command, share_cores
from kvstore.cli.stack import Plan, Stack
from kvstore.config import NodeConfig, SsdConfig, parse_bytes
from kvstore.node.daemon import Node


def add(commands: Commands) -> None:
    up = command(
        commands,
        "up",
        "run a storage node, a prefill engine and a decode engine until Ctrl-C",
        "moonpool up --dram 4GiB --model ./my-llama",
    )
    add_directory(up)
    _add_memory(up)
    up.add_argument(
        "--model", type=Path, metavar="DIR", help="a Hugging Face folder (default: a random model)"
    )
    up.add_argument("--no-engines", action="store_true", help="run the storage node alone")
    up.set_defaults(run=run_up)

    node = command(
        commands,
        "node",
        "run this host's storage node",
        "moonpool node --dram 8GiB --ssd /data/moonpool:200GiB --listen 127.0.0.1:7410",
    )
    add_directory(node)
    _add_memory(node)
    node.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="gRPC address; port 0 takes a free one (default: %(default)s)",
    )
    node.add_argument(
        "--ssd",
        metavar="PATH:SIZE",
        action="append",
        default=[],
        help="a directory to keep blocks in over restarts, made if need be, and how much of it; "
        "several times for several disks, in any order",
    )
    node.add_argument(
        "--ssd-buffered",
        action="store_true",
        help="write through the page cache: for a filesystem without O_DIRECT",
    )
    node.add_argument(
        "--scrub-rate",
        default="16MiB",
        metavar="SIZE",
        help="bytes a second at which blocks are verified in the background, in memory and on "
        "SSD; 0 leaves it to `moonpool scrub` (default: %(default)s)",
    )
    node.set_defaults(run=run_node)

    engine = command(
        commands,
        "engine",
        "run an inference engine on this host's pool",
        "moonpool engine --model ./my-llama --role decode",
    )
    add_directory(engine)
    engine.add_argument("--model", type=Path, required=True, metavar="DIR")
    engine.add_argument("--role", choices=("prefill", "decode", "both"), default="both")
    engine.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    engine.add_argument("--pages", type=int, default=512, help="pages of KV (default: %(default)s)")
    engine.add_argument("--page-tokens", type=int, default=64, help="tokens a page and block")
    engine.add_argument("--threads", type=int, default=0, help="torch threads (default: its own)")
    engine.set_defaults(run=run_engine)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dram", default="1GiB", metavar="SIZE", help="memory for blocks (default: %(default)s)"
    )
    parser.add_argument(
        "--slab",
        default="32MiB",
        metavar="SIZE",
        help="unit in which memory passes between namespaces; holds at least one block",
    )


def _ready(address: str) -> None:
    """One line of JSON on stdout, for whoever started this process."""
    print(json.dumps({"ready": address}), flush=True)


def run_node(args: argparse.Namespace) -> int:
    config = NodeConfig(
        directory=args.dir,
        listen=args.listen,
        dram_bytes=parse_bytes("--dram", args.dram),
        slab_bytes=parse_bytes("--slab", args.slab),
        ssd=tuple(SsdConfig.parse(text, buffered=args.ssd_buffered) for text in args.ssd),
        scrub_rate=parse_bytes("--scrub-rate", args.scrub_rate),
    )
    asyncio.run(Node(config).run(_ready))
    return 0


def run_engine(args: argparse.Namespace) -> int:
    share_cores()
    # torch is an extra: only engines need it.
    from kvstore.engine.core import EngineSettings
    from kvstore.engine.daemon import EngineConfig, run

    settings = EngineSettings(pages=args.pages, page_tokens=args.page_tokens)
    config = EngineConfig(args.model, args.dir, args.role, args.listen, args.threads, settings)
    asyncio.run(run(config, _ready))
    return 0


def run_up(args: argparse.Namespace) -> int:
    parse_bytes("--dram", args.dram)
    plan = Plan(args.dir, args.dram, args.slab, None if args.no_engines else _model(args))
    with Stack(plan, restart=True) as stack:
        stack.start()
        for name, address in stack.addresses.items():
            print(f"{name:<8} {address}")
        print(f"logs in {plan.directory}; Ctrl-C stops everything", flush=True)
        stack.watch()
    return 0


def _model(args: argparse.Namespace) -> Path:
    if args.model is not None:
        return Path(args.model)
    from kvstore.cli.models import default_model

    path = default_model(args.dir)
    print(f"no --model given: using {path}, whose weights are random", file=sys.stderr)
    return path
