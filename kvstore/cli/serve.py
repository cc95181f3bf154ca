"""`moonpool serve`: OpenAI's API over HTTP before a pool's engines."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from kvstore.cli.options import (
    Commands,
    add_metrics,
    check_model,
    command,
    refuse_idle,
    say_ready,
)
from kvstore.config import GatewayConfig


def add(commands: Commands) -> None:
    serve = command(
        commands,
        "serve",
        "answer OpenAI's completions and chats over HTTP through engines, vLLM and SGLang servers",
        "moonpool serve --conductor 127.0.0.1:7420 --model ./my-llama --listen 127.0.0.1:8000\n"
        "  curl 127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\\n"
        """      -d '{"model": "my-llama", "prompt": "Once upon", "max_tokens": 16}'""",
    )
    serve.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="DIR",
        help="the model folder that the engines have: its tokenizer makes text, and its weights "
        "are those that engines are asked for",
    )
    serve.add_argument(
        "--name", default="", help="by which callers ask for the model (default: the folder's name)"
    )
    serve.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME",
        help="callers may ask for this LoRA adapter of the model, too, which vLLM servers have "
        "under that name (--lora-modules NAME=PATH); may be repeated",
    )
    serve.add_argument(
        "--listen",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="where HTTP is answered, on loopback; port 0 takes a free one (default: %(default)s)",
    )
    serve.add_argument(
        "--conductor",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="ask this conductor where each request is to run; may be repeated",
    )
    serve.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="an engine that requests go to while no conductor answers: HOST:PORT of one of ours, "
        "http://HOST:PORT of a vLLM server, sglang://HOST:PORT of an SGLang server; may be "
        "repeated",
    )
    serve.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="let in only who shows one of these keys (TOML: a `secret`, and [client.NAME] with "
        "`keys`, their SHA-256, `tenant` and `requests`), read again on SIGHUP; no two tenants "
        "share KV (default: everybody on this host may call)",
    )
    serve.add_argument(
        "--revision",
        default="",
        metavar="TEXT",
        help="names the weights, where vLLM's connector says another `revision` than a digest of "
        "what is in the folder: as for models from the hub, commit:HASH (default: that digest)",
    )
    serve.add_argument(
        "--max-model-len",
        type=int,
        metavar="N",
        help="tokens of a prompt and its answer, at most: as the servers were told, if they were "
        "(default: as many as the model has positions for)",
    )
    serve.add_argument(
        "--answer-tokens",
        type=int,
        metavar="N",
        help="tokens of an answer whose caller names no max_tokens, at most: long ones may have to "
        "give way to others for a while, where an engine has no more room "
        "(default: as many as the model and the engine have place for)",
    )
    add_metrics(serve, unless="a free port of loopback, for it shows its own on the dashboard")
    serve.add_argument(
        "--watch",
        action="append",
        metavar="HOST:PORT",
        help="show this process on the dashboard, which is at /: what a node, a conductor or an "
        "engine has as its --metrics; may be repeated",
    )
    serve.add_argument(
        "--board",
        default="",
        metavar="HOST:PORT",
        help="show the dashboard there, on loopback; with --keys it is nowhere else, for it shows "
        "all callers' requests (default: at / of --listen, unless there are --keys)",
    )
    serve.set_defaults(run=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    if args.keys and not args.board:
        refuse_idle(args, ("watch",), "with --keys, without --board: nobody is shown a dashboard")
    check_model(args.model)
    config = GatewayConfig(
        model=args.model,
        name=args.name,
        listen=args.listen,
        conductors=tuple(args.conductor),
        engines=tuple(args.engine),
        metrics=args.metrics,
        watch=tuple(args.watch or ()),
        board=args.board,
        revision=args.revision,
        keys=args.keys,
        max_model_len=args.max_model_len,
        answer_tokens=args.answer_tokens,
        adapters=tuple(args.adapter),
    )
    # HTTP and tokenizers are an extra: only gateways need them.
    from kvstore.gateway.http import daemon

    asyncio.run(daemon.run(config, say_ready))
    return 0
