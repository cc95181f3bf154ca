"""`moonpool roles`: how engines are split between prefilling and decoding, and how they had better
be."""

from __future__ import annotations

import argparse
import json
import math
from contextlib import closing
from typing import Any

from kvstore.address import check_server
from kvstore.cli.options import Commands, command
from kvstore.errors import Unavailable
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc

ANSWER_SECONDS = 5.0
_TEACHING = """\
Ask a conductor how engines are split between prefilling and decoding, how busy each
phase was in the last minute, and which split would leave the busier phase the least
busy. Busy is what was asked for, refused or not, as a share of what its engines can do.

Engines that run with --role elastic switch by themselves, one at a time, and here you
see which and why. For the others it is a recommendation. Where several conductors are
asked by callers each knows a part of the prompts well and of the rest their number.

Who you are is said by the environment, as everywhere: MOONPOOL_TLS_CA, _CERT and _KEY,
and MOONPOOL_TOKEN. You see the engines of your tenant.

exit code 1: the conductor does not answer, or no such engine of yours reports to it.
"""


def add(commands: Commands) -> None:
    roles = command(
        commands,
        "roles",
        "say how engines are best split between prefilling and decoding, and which is to switch",
        "moonpool roles --conductor 127.0.0.1:7420",
    )
    roles.description = _TEACHING
    roles.add_argument("--conductor", required=True, metavar="HOST:PORT", help="who is asked")
    roles.add_argument(
        "--namespace",
        default="",
        metavar="HEX",
        help="only engines that serve it; leading digits do (default: all of yours)",
    )
    roles.add_argument("--json", action="store_true", help="one JSON object")
    roles.set_defaults(run=run_roles)


def run_roles(args: argparse.Namespace) -> int:
    check_server("--conductor", args.conductor)
    with closing(open_channel(args.conductor)) as channel, typed_errors(args.conductor):
        stub = conductor_pb2_grpc.ConductorStub(channel)
        reply = stub.Balance(pb.BalanceRequest(), timeout=ANSWER_SECONDS)
    crews = [one for one in reply.crews if one.namespace.hex().startswith(args.namespace.lower())]
    if not crews:
        of = f" of namespace {args.namespace}" if args.namespace else ""
        raise Unavailable(f"no engine of yours{of} reports to {args.conductor}")
    if args.json:
        print(json.dumps({"crews": [_facts(one) for one in crews]}))
        return 0
    for one in crews:
        _tell(one)
    return 0


def _tell(crew: pb.BalanceReply.Crew) -> None:
    group = f" group {crew.group}" if crew.group else ""
    print(f"namespace {crew.namespace.hex()[:12]}{group}, as it was asked in the last minute")
    now, best = crew.now, crew.best
    print(f"  now   {now.prefill} prefill, {_share(crew.prefill_load)} of what they can do")
    print(f"        {now.decode} decode, {_share(crew.decode_load)} of what they can do")
    load = f"the busier phase has {_share(crew.best_load)}"
    print(f"  best  {best.prefill} prefill, {best.decode} decode: {load}")
    print(f"  {crew.sentence}")


def _share(load: float) -> str:
    return f"{load:.0%}" if math.isfinite(load) else "far more"


def _facts(crew: pb.BalanceReply.Crew) -> dict[str, Any]:
    loads = ("prefill_load", "decode_load", "best_load")
    return {
        "namespace": crew.namespace.hex(),
        "group": crew.group,
        "now": {"prefill": crew.now.prefill, "decode": crew.now.decode},
        "best": {"prefill": crew.best.prefill, "decode": crew.best.decode},
        # What is infinite, as nobody does it, is null.
        **{one: load if math.isfinite(load := getattr(crew, one)) else None for one in loads},
        "engine_id": crew.engine_id,
        "sentence": crew.sentence,
    }
