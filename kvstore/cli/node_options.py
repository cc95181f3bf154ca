"""What a node can be told on a command line: for `moonpool node`, and `doctor` before it."""

from __future__ import annotations

import argparse

from kvstore.cli.options import Options, add_metrics, add_tls, directory, etcd, refuse_idle, tls
from kvstore.config import NodeConfig, SsdConfig, label, parse_bytes


def add_settings(node: Options) -> None:
    """All but where its directory and the pool's metadata are, which others are told too."""
    add_memory(node)
    node.add_argument(
        "--numa",
        choices=("auto", "off"),
        default="auto",
        help="auto spreads --dram evenly over the host's NUMA nodes, so that each engine on this "
        "host stores to the memory of its own socket while there is room; off leaves it to the "
        "kernel (default: %(default)s)",
    )
    node.add_argument(
        "--hbm",
        default="0",
        metavar="SIZE",
        help="memory of a GPU for blocks too: engines on that GPU store and load there without a "
        "copy over the bus, and what makes room goes to --dram; takes CUDA (default: none)",
    )
    node.add_argument(
        "--hbm-device", type=int, metavar="N", help="which GPU, as CUDA numbers them (default: 0)"
    )
    add_listen(node)
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
        default=None,
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
    add_tls(node)
    add_metrics(node)
    node.add_argument(
        "--transport",
        default="tcp",
        metavar="NAME[,NAME]",
        help="how blocks go to and from callers that do not map this node's memory: tcp, or "
        "tcp,ucx to offer UCX as well, to callers that are trusted with this host's memory "
        "(default: %(default)s)",
    )


def add_memory(parser: Options) -> None:
    parser.add_argument(
        "--dram", default="1GiB", metavar="SIZE", help="memory for blocks (default: %(default)s)"
    )
    parser.add_argument(
        "--slab",
        default="32MiB",
        metavar="SIZE",
        help="unit in which memory passes between models; holds at least one block "
        "(default: %(default)s)",
    )


def add_listen(parser: Options) -> None:
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


def node_config(args: argparse.Namespace) -> NodeConfig:
    """What these options, the directory's and the metadata's say. Raises `ConfigError`."""
    hbm_bytes, buffered = parse_bytes("--hbm", args.hbm), bool(args.ssd_buffered)
    if not hbm_bytes:
        refuse_idle(args, ("hbm_device",), "without --hbm")
    if not args.ssd:
        refuse_idle(args, ("ssd_buffered",), "without --ssd")
    return NodeConfig(
        directory=directory(args),
        listen=args.listen,
        advertise=args.advertise,
        data_port=args.data_port,
        dram_bytes=parse_bytes("--dram", args.dram),
        hbm_bytes=hbm_bytes,
        hbm_device=args.hbm_device or 0,
        slab_bytes=parse_bytes("--slab", args.slab),
        numa=args.numa,
        ssd=tuple(SsdConfig.parse(text, buffered=buffered) for text in args.ssd),
        scrub_rate=parse_bytes("--scrub-rate", args.scrub_rate),
        transports=tuple(args.transport.split(",")),
        etcd=etcd(args),
        metadata=args.metadata,
        tls=tls(args),
        labels=tuple(label(text) for text in args.label),
        metrics=args.metrics,
    )
