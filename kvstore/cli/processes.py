"""`moonpool node`, `conductor` and `up`: the processes that serve, less the engine."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from kvstore.cli.compiling import compile_first
from kvstore.cli.node_options import add_listen, add_memory, add_settings, node_config
from kvstore.cli.options import (
    Commands,
    add_directory,
    add_etcd,
    add_metadata,
    add_metrics,
    add_tls,
    check_model,
    command,
    directory,
    etcd,
    etcd_arguments,
    metadata_file,
    plain,
    refuse_idle,
    say_ready,
    tls,
)
from kvstore.cli.parts import Plan
from kvstore.cli.stack import Stack
from kvstore.config import ConductorConfig, NodeConfig, parse_bytes
from kvstore.gateway.http.listener import listening_at
from kvstore.limits import TPOT_MS_DEFAULT, TTFT_MS_DEFAULT

GATEWAY_LISTEN = "127.0.0.1:8000"
_JSON = "content-type: application/json"


def add(commands: Commands) -> None:
    up = command(
        commands,
        "up",
        "run a storage node, a conductor, a prefill engine, a decode engine and a gateway before "
        "them until Ctrl-C",
        "moonpool up --dram 4GiB --model ./my-llama",
    )
    add_directory(up)
    add_memory(up)
    up.add_argument(
        "--model", type=Path, metavar="DIR", help="a Hugging Face folder (default: a random model)"
    )
    up.add_argument("--no-engines", action="store_true", help="run the storage node alone")
    up.add_argument(
        "--no-gateway", action="store_true", help="run no gateway, and no conductor for it"
    )
    up.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="where the gateway answers OpenAI's clients, and shows the dashboard at / "
        f"(default: {GATEWAY_LISTEN})",
    )
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
    add_etcd(node)
    add_metadata(node)
    add_settings(node)
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
    add_metrics(conductor)
    add_listen(conductor)
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


def run_node(args: argparse.Namespace) -> int:
    # A fourth of what this command loads, and no other runs it.
    from kvstore.node.daemon import Node

    asyncio.run(Node(node_config(args)).run(say_ready))
    return 0


def run_conductor(args: argparse.Namespace) -> int:
    # Its index is compiled, and a node starts without what compiles it.
    from kvstore.conductor.daemon import Conductor
    from kvstore.conductor.warm_up import compiled

    shared = etcd(args)
    config = ConductorConfig(
        metadata_file(args) if shared is None else Path(),  # which is not looked at
        args.listen,
        etcd=shared,
        tls=tls(args),
        advertise=args.advertise,
        ttft_ms=args.ttft_ms,
        tpot_ms=args.tpot_ms,
        metrics=args.metrics,
    )
    conductor = Conductor(config)
    asyncio.run(conductor.check())
    compile_first("the conductor", compiled)
    asyncio.run(conductor.run(say_ready))
    return 0


def run_up(args: argparse.Namespace) -> int:
    if args.no_engines:
        refuse_idle(args, ("model", "listen"), "with --no-engines")
    if args.no_gateway:
        refuse_idle(args, ("listen",), "with --no-gateway")
    parse_bytes("--dram", args.dram)
    etcd(args)  # a wrong setting is told here, and not in the node's log
    _check_free(directory(args))
    model = None if args.no_engines else _model(args)
    plan = Plan(
        *(directory(args), args.dram, args.slab, model),
        etcd=etcd_arguments(args),
        tls=tls(args),
        gateway=_gateway(args, model),
    )
    with Stack(plan, restart=True) as stack:
        print(f"starting {', '.join(stack.children)} ...", file=sys.stderr)
        stack.start(lambda child: print(f"{child.name:<9} {child.address}", flush=True))
        if plan.gateway:
            assert model is not None, "a gateway is before engines"
            _tell_gateway(stack, model.resolve().name)
        print(f"logs in {plan.directory}; Ctrl-C stops everything", flush=True)
        stack.watch()
        print("stopping: what was begun is ended first ...", file=sys.stderr)
    return 0


def _tell_gateway(stack: Stack, model: str) -> None:
    """Where to look, and a request that is answered as it stands."""
    address = stack.addresses["gateway"]
    metrics = shlex.join(child.metrics for child in stack.children.values())
    body = json.dumps({"model": model, "prompt": "Once upon", "max_tokens": 16})
    asked = shlex.join((f"{address}/v1/completions", "-H", _JSON, "-d", body))
    print(f"dashboard http://{address}/")
    print(f"metrics   moonpool top {metrics}")
    print(f"model     {plain(model)}")
    print(f"request   curl {asked}")


def _check_free(place: Path) -> None:
    """Raise where a node runs in it: before a model is made there for another."""
    from kvstore.node.start import locked

    config = NodeConfig(place)
    if config.lock_file.exists():
        locked(config).close()


def _gateway(args: argparse.Namespace, model: Path | None) -> str:
    """Where it is to answer; empty where there is to be none."""
    if model is None or args.no_gateway:
        return ""
    if tls(args) is not None:
        print("no gateway: with --tls-... run `moonpool conductor` and `serve`", file=sys.stderr)
        return ""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        print("no gateway: pip install 'moonpool[serve]' brings it", file=sys.stderr)
        return ""
    # Another who has this port is told now, and not once all before the gateway have started.
    listen = args.listen or GATEWAY_LISTEN
    listening_at(listen, "--listen").close()
    return str(listen)


def _model(args: argparse.Namespace) -> Path:
    if args.model is not None:
        check_model(args.model)
        from kvstore.engine.config import ModelConfig

        ModelConfig.load(args.model)  # a folder that is none is told before anything is started
        return Path(args.model)
    from kvstore.cli.models import default_model

    path = default_model(directory(args))
    print(f"no --model given: using {path}, whose weights are random", file=sys.stderr)
    return path
