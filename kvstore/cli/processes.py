"""`moonpool node`, `conductor` and `up`: the processes that serve, less the engine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from kvstore.cli.options import (
    Commands,
    add_directory,
    add_etcd,
    add_metadata,
    add_tls,
    command,
    etcd,
    etcd_arguments,
    say_ready,
    tls,
)
from kvstore.cli.stack import Plan, Stack
from kvstore.config import ConductorConfig, NodeConfig, SsdConfig, label, parse_bytes
from kvstore.limits import TPOT_MS_DEFAULT, TTFT_MS_DEFAULT
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
    add_etcd(up)
    add_tls(up)
    up.set_defaults(run=run_up)

    node = command(
        commands,
        "node",
        "run this host's storage node",
        "moonpool node --dram 8GiB --ssd /data/moonpool:200GiB --listen 127.0.0.1:7410",
    )
    add_directory(node)
    _add_memory(node)
    _add_listen(node)
    node.add_argument(
        "--data-port",
        type=int,
        default=0,
        metavar="PORT",
        help="where other hosts send and fetch blocks' bytes; 0 takes a free one (default: 0)",
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
    node.add_argument(
        "--label",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="where the node stands, several times: copies of a block go to another `rack`, and "
        "another `host` (which is set by itself), where there is one",
    )
    add_etcd(node)
    add_metadata(node)
    add_tls(node)
    node.add_argument(
        "--transport",
        default="tcp",
        metavar="NAME[,NAME]",
        help="how blocks go to and from callers that do not map this node's memory: tcp, or "
        "tcp,ucx to offer UCX as well, to callers that are trusted with this host's memory "
        "(default: %(default)s)",
    )
    node.set_defaults(run=run_node)

    conductor = command(
        commands,
        "conductor",
        "follow the nodes of a pool and answer which of them holds what",
        "moonpool conductor --listen 127.0.0.1:7420",
    )
    add_directory(conductor)
    add_metadata(conductor)
    add_etcd(conductor)
    add_tls(conductor)
    _add_listen(conductor)
    targets = (
        ("--ttft-ms", TTFT_MS_DEFAULT, "until a request's first token"),
        ("--tpot-ms", TPOT_MS_DEFAULT, "for each token after its first"),
    )
    for name, usual, of in targets:
        conductor.add_argument(
            name,
            type=int,
            default=usual,
            metavar="MS",
            help=f"time {of}, where the request names none (default: %(default)s)",
        )
    conductor.set_defaults(run=run_conductor)


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


def _add_listen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="gRPC address; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--advertise",
        default="",
        metavar="HOST",
        help="the name or address at which other hosts reach this one (default: as in --listen)",
    )


def run_node(args: argparse.Namespace) -> int:
    config = NodeConfig(
        directory=args.dir,
        listen=args.listen,
        advertise=args.advertise,
        data_port=args.data_port,
        dram_bytes=parse_bytes("--dram", args.dram),
        slab_bytes=parse_bytes("--slab", args.slab),
        ssd=tuple(SsdConfig.parse(text, buffered=args.ssd_buffered) for text in args.ssd),
        scrub_rate=parse_bytes("--scrub-rate", args.scrub_rate),
        transports=tuple(args.transport.split(",")),
        etcd=etcd(args),
        metadata=args.metadata,
        tls=tls(args),
        labels=tuple(label(text) for text in args.label),
    )
    asyncio.run(Node(config).run(say_ready))
    return 0


def run_conductor(args: argparse.Namespace) -> int:
    # Its index is compiled, and a node starts without what compiles it.
    from kvstore.conductor.daemon import Conductor

    metadata = args.metadata or args.dir / "metadata.db"
    metadata.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = ConductorConfig(
        metadata,
        args.listen,
        etcd=etcd(args),
        tls=tls(args),
        advertise=args.advertise,
        ttft_ms=args.ttft_ms,
        tpot_ms=args.tpot_ms,
    )
    asyncio.run(Conductor(config).run(say_ready))
    return 0


def run_up(args: argparse.Namespace) -> int:
    parse_bytes("--dram", args.dram)
    etcd(args)  # a wrong setting is told here, and not in the node's log
    model = None if args.no_engines else _model(args)
    plan = Plan(
        *(args.dir, args.dram, args.slab, model),
        node_options=etcd_arguments(args),
        tls=tls(args),
    )
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
