"""`moonpool engine`, and the command of its further ranks, which no person runs."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.address import check_server
from kvstore.cli.options import (
    Commands,
    add_codec,
    add_directory,
    add_metrics,
    check_model,
    command,
    directory,
    say_ready,
    share_cores,
)
from kvstore.cli.ranks import Ranks, join
from kvstore.config import Stands
from kvstore.errors import ConfigError

if TYPE_CHECKING:
    from kvstore.engine.daemon import EngineConfig


def add(commands: Commands) -> None:
    engine = command(
        commands,
        "engine",
        "run an inference engine on this host's pool",
        "moonpool engine --model ./my-llama --role decode",
    )
    _add_settings(engine)
    engine.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="gRPC address, on loopback; port 0 takes a free one (default: %(default)s)",
    )
    engine.add_argument(
        "--conductor",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="tell this conductor of the engine, so that it sends requests here; may be repeated",
    )
    _add_stands(engine)
    add_metrics(engine)
    engine.set_defaults(run=run_engine)

    rank = commands.add_parser("rank")  # without help, so that the list of commands omits it
    _add_settings(rank)
    rank.add_argument("--rank", type=int, required=True)
    rank.add_argument("--meeting", type=Path, required=True)
    rank.set_defaults(run=run_rank, listen="", conductor=[], metrics="", **asdict(Stands()))


def _add_stands(parser: argparse.ArgumentParser) -> None:
    """What conductors are told of where the host stands: its neighbours are quicker to reach."""
    parser.add_argument("--rack", default="", metavar="NAME", help="this host's, for conductors")
    parser.add_argument(
        "--cross-rack-bytes-per-second",
        type=float,
        default=0.0,
        metavar="B",
        help="that reach other racks, where that is less than the host's link carries",
    )
    parser.add_argument(
        "--nvlink-domain", default="", metavar="NAME", help="this host's, if it is in one"
    )
    parser.add_argument(
        "--nvlink-bytes-per-second",
        type=float,
        default=0.0,
        metavar="B",
        help="that KV moves at between hosts of that domain",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """What all ranks of an engine are to agree on."""
    add_directory(parser)
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="DIR",
        help="a Hugging Face folder of a Llama, Qwen2 or Qwen3 style model",
    )
    parser.add_argument(
        "--role",
        choices=("prefill", "decode", "both", "elastic", "elastic=prefill", "elastic=decode"),
        default="both",
        help="what requests it is sent for; elastic: both, or what is named, until its conductors "
        "want it to prefill or decode alone, and to switch whenever the other is busier, one "
        "engine at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--pages",
        type=int,
        default=512,
        metavar="N",
        help="pages of KV that it has itself, apart from the node's memory (default: %(default)s)",
    )
    parser.add_argument(
        "--page-tokens",
        type=int,
        default=64,
        metavar="N",
        help="tokens of a page, and of a block in the pool: engines that share blocks have the "
        "same (default: %(default)s)",
    )
    add_codec(parser)
    parser.add_argument(
        "--tp",
        type=int,
        default=1,
        metavar="N",
        help="tensor parallel: N processes of this host share the model, each with some of its "
        "heads (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="where it computes and has its pages: cpu, cuda or cuda:N (default: %(default)s)",
    )
    parser.add_argument(
        "--graphs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on a GPU, record the steps that decode as CUDA graphs when it starts; the CPU has "
        "none (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="torch threads of each process (default: the host's cores, shared between them)",
    )


def run_engine(args: argparse.Namespace) -> int:
    config = _config(args)
    from kvstore.engine import daemon

    if config.ranks == 1:
        asyncio.run(daemon.run(config, say_ready))
        return 0
    with Ranks(_rank_arguments(args), config.ranks) as others:
        asyncio.run(daemon.run(config, say_ready, others))
    return 0


def run_rank(args: argparse.Namespace) -> int:
    config = _config(args)
    from kvstore.engine import daemon

    daemon.run_rank(config, args.rank, args.meeting, join)
    return 0


def _config(args: argparse.Namespace) -> EngineConfig:
    for one in args.conductor:
        check_server("--conductor", one)
    share_cores()
    # torch is an extra: only engines need it.
    from kvstore.engine.core import EngineSettings
    from kvstore.engine.daemon import EngineConfig

    if args.tp < 1:
        raise ConfigError(f"--tp {args.tp}: at least one process computes")
    if args.threads < 0:
        raise ConfigError(f"--threads {args.threads}: 1 or more, or 0 for the host's cores")
    check_model(args.model)
    return EngineConfig(
        model=args.model,
        directory=directory(args),
        role=args.role,
        listen=args.listen,
        threads=args.threads,
        device=args.device,
        graphs=args.graphs,
        codec=args.codec,
        settings=EngineSettings(pages=args.pages, page_tokens=args.page_tokens),
        ranks=args.tp,
        conductors=tuple(args.conductor),
        metrics=args.metrics,
        stands=Stands(**{one.name: getattr(args, one.name) for one in fields(Stands)}),
    )


def _rank_arguments(args: argparse.Namespace) -> list[str]:
    """A rank's command, less which rank it is."""
    names = ("model", "role", "pages", "page_tokens", "codec", "tp", "threads", "device")
    given = [[f"--{name.replace('_', '-')}", str(getattr(args, name))] for name in names]
    return ["rank", "--dir", os.fspath(directory(args)), *chain.from_iterable(given)]
