"""`moonpool scrub`, `moonpool purge`: what an operator has a node do with all that it holds."""

from __future__ import annotations

import argparse
import json
import sys

from tqdm import tqdm

from kvstore.cli.options import (
    POOL,
    Commands,
    add_etcd,
    add_metadata,
    add_node,
    admin,
    command,
    refuse_idle,
    size_of,
)
from kvstore.cli.pool_purge import PURGE_SECONDS_MAX, purge_everywhere
from kvstore.cli.purge_question import STATS_SECONDS, agreed, meant
from kvstore.wire.v1 import admin_pb2 as pb

SCRUB_SECONDS_MAX = 7 * 86_400.0  # a round of a large SSD at a low rate takes days


def add(commands: Commands) -> None:
    scrub = command(
        commands,
        "scrub",
        "verify every block that a node holds, in memory and on SSD; exit code 1 if any copy was "
        "damaged (it is dropped, and a miss from then on unless there is another)",
        "moonpool scrub --rate 256MiB",
    )
    add_node(scrub)
    scrub.add_argument(
        "--rate",
        default="256MiB",
        metavar="SIZE",
        help="bytes a second at most; 0 for as fast as one reader is (default: %(default)s)",
    )
    scrub.add_argument("--json", action="store_true", help="one JSON object at the end")
    scrub.set_defaults(run=run_scrub)

    purge = command(
        commands,
        "purge",
        "make a node forget a namespace's blocks, or a tenant's: when this ends, nothing that it "
        "held of them is served again, not after a restart either. What an engine has mapped or "
        "copied already stays with it",
        "moonpool purge --namespace 4fb1e6b33f1f --yes",
    )
    add_node(purge)
    whose = purge.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "--namespace",
        default="",
        metavar="HEX",
        help="as `moonpool stat` names it; leading digits do",
    )
    whose.add_argument("--tenant", default="", metavar="NAME", help="in every namespace")
    purge.add_argument(
        "--everywhere",
        action="store_true",
        help="at every node of the pool that runs now; exit code 1 if one of them was not reached",
    )
    add_etcd(purge)
    add_metadata(purge)
    purge.add_argument("--yes", action="store_true", help="do not ask first")
    purge.set_defaults(run=run_purge)


def run_scrub(args: argparse.Namespace) -> int:
    request = pb.ScrubRequest(bytes_per_second=size_of("--rate", args.rate))
    reply = pb.ScrubReply()
    with (
        admin(args) as stub,
        tqdm(unit="block", file=sys.stderr, leave=False, disable=None) as bar,
    ):
        for reply in stub.Scrub(request, timeout=SCRUB_SECONDS_MAX):
            bar.total = reply.blocks
            bar.set_postfix(damaged=reply.damaged, refresh=False)
            bar.update(reply.blocks_done - bar.n)
    facts = {name: getattr(reply, name) for name in pb.ScrubReply.DESCRIPTOR.fields_by_name}
    if args.json:
        print(json.dumps(facts))
    else:
        print(
            f"{reply.blocks_done} blocks, {reply.bytes_done} bytes verified: "
            f"{reply.damaged} copies damaged and dropped, {reply.unread} could not be read"
        )
    return 1 if reply.damaged or reply.unread else 0


def run_purge(args: argparse.Namespace) -> int:
    if not args.everywhere:
        refuse_idle(args, POOL, "without --everywhere: one node is asked, that of --dir or --node")
    given = {"namespace": args.namespace} if args.namespace else {"tenant": args.tenant}
    request = pb.PurgeRequest(**given)
    [(kind, name)] = given.items()
    whose = f"{kind} {name}"
    if args.everywhere:
        return purge_everywhere(args, request, whose)
    with admin(args) as stub:
        if not args.yes:
            stats = stub.Stats(pb.StatsRequest(), timeout=STATS_SECONDS)
            if not agreed(meant(request, [stats])):
                return 1
        (reply,) = stub.Purge(request, timeout=PURGE_SECONDS_MAX)
    print(f"purged {whose}: {reply.dropped_blocks} blocks dropped")
    return 0
