"""`moonpool replicate`, `moonpool drain`: blocks that other nodes are to have."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from tqdm import tqdm

from kvstore.block import Chain, chain
from kvstore.cli.blocks import tokens_of
from kvstore.cli.options import Commands, add_node, admin, check_number, command, refuse_idle
from kvstore.config import DEFAULT_TENANT
from kvstore.errors import Invalid, Unavailable
from kvstore.limits import GROUPS_MAX, MOVE_OUT_SECONDS_MAX, REPLICAS_MAX
from kvstore.rpc.status import typed_errors
from kvstore.spec import KVSpec
from kvstore.wire.v1 import admin_pb2 as pb

DEADLINE_SECONDS = 10.0
REPLICATE_SECONDS_MAX = 86_400.0  # a whole namespace goes over the network
MOVE_OUT_SECONDS = 60
_GRACE_SECONDS = 15.0  # beyond its time: a step that was begun is ended
_BEGUN = "the node takes no new blocks by now and serves on: end it by `drain --no-move`"


def add(commands: Commands) -> None:
    replicate = command(
        commands,
        "replicate",
        "have so many nodes keep the blocks of a prompt, or all that a node has of a namespace; "
        "exit code 1 if some have fewer at the end, or are not at this node",
        "moonpool replicate --namespace 4fb1e6b33f1f --tokens system-prompt.json --copies 3",
    )
    add_node(replicate)
    replicate.add_argument(
        "--namespace",
        required=True,
        metavar="HEX",
        help="as `moonpool stat` names it; leading digits do",
    )
    replicate.add_argument(
        "--copies", type=int, required=True, help="nodes that are to have each, this one among them"
    )
    which = replicate.add_mutually_exclusive_group()
    which.add_argument(
        "--tokens",
        metavar="IDS|FILE",
        help="the blocks of this prompt (default: all): token ids, or a file with a JSON list",
    )
    which.add_argument(
        "--hash", action="append", default=[], metavar="HEX", help="a block's hash; several times"
    )
    replicate.add_argument("--group", type=int, default=0, help="KV group (default: %(default)s)")
    replicate.add_argument(
        "--tenant", default=DEFAULT_TENANT, metavar="NAME", help="whose (default: %(default)s)"
    )
    replicate.add_argument("--json", action="store_true", help="one JSON object at the end")
    replicate.set_defaults(run=run_replicate)

    drain = command(
        commands,
        "drain",
        "let a node hand to others what nobody else has and finish what it has begun, then stop it",
        "moonpool drain --seconds 300",
    )
    add_node(drain)
    drain.add_argument(
        "--move",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="have other nodes take the blocks that they lack, those worth most first; with no "
        "other node nothing is moved (default: %(default)s)",
    )
    drain.add_argument(
        "--seconds",
        type=int,
        help="for that, at most; what is left by then goes with the node, but for what its SSD "
        f"keeps (default: {MOVE_OUT_SECONDS})",
    )
    drain.set_defaults(run=run_drain)


def run_replicate(args: argparse.Namespace) -> int:
    check_number("--copies", args.copies, 1, REPLICAS_MAX)
    check_number("--group", args.group, 0, GROUPS_MAX - 1)
    reply = pb.ReplicateReply()
    with admin(args) as stub, _bar() as bar:
        hashes, wanted = _asked(args, stub)
        request = pb.ReplicateRequest(
            namespace=args.namespace,
            group=args.group,
            hashes=hashes,
            tenant=args.tenant,
            copies=args.copies,
        )
        for reply in stub.Replicate(request, timeout=REPLICATE_SECONDS_MAX):
            bar.total = reply.blocks
            bar.update(reply.blocks_done - bar.n)
    facts = {name: getattr(reply, name) for name in pb.ReplicateReply.DESCRIPTOR.fields_by_name}
    asked = max(wanted, reply.blocks)
    if args.json:
        print(json.dumps({"asked": asked, **facts}))
    else:
        fewest = f"; the fewest is {reply.least}" if reply.whole < reply.blocks else ""
        print(f"{reply.whole} of {reply.blocks} blocks are at {args.copies} nodes{fewest}")
        if reply.blocks < asked:
            print(f"{asked - reply.blocks} of the {asked} blocks are not at this node")
    return 1 if reply.whole < asked else 0


def run_drain(args: argparse.Namespace) -> int:
    if not args.move:
        refuse_idle(args, ("seconds",), "with --no-move")
    seconds = MOVE_OUT_SECONDS if args.seconds is None else args.seconds
    check_number("--seconds", seconds, 0, MOVE_OUT_SECONDS_MAX)
    with admin(args) as stub:
        if args.move:
            print(_move_out(stub, seconds))
        stub.Drain(pb.DrainRequest(), timeout=DEADLINE_SECONDS)
    print("draining")
    return 0


def _move_out(stub: Any, seconds: int) -> str:
    """Have the node do so; what became of it. A node that has begun takes nothing new any more,
    and so is to end whether or not it is done in time."""
    keeps = bool(stub.Stats(pb.StatsRequest(), timeout=DEADLINE_SECONDS).ssd)
    ends = time.monotonic() + seconds
    reply, request = pb.MoveOutReply(), pb.MoveOutRequest(seconds=seconds)
    try:
        with _bar() as bar, typed_errors("the node"):
            for reply in stub.MoveOut(request, timeout=seconds + _GRACE_SECONDS):
                bar.total = reply.blocks
                bar.update(reply.moved + reply.elsewhere - bar.n)
    except Unavailable as error:
        if time.monotonic() < ends:  # to move the rest: it may be drained again
            print(f"moonpool: if it is there still, {_BEGUN}, or drain it again", file=sys.stderr)
            raise
        so_far = f"; {_moved(reply, keeps)}" if reply.blocks else ""
        return f"the node was not done with moving out: {error}{so_far}"
    except KeyboardInterrupt:
        print(f"moonpool: {_BEGUN}", file=sys.stderr)
        raise
    return _moved(reply, keeps)


def _moved(reply: pb.MoveOutReply, keeps: bool) -> str:
    # How many those are is known when it has ended: it writes what waits for SSD until then.
    but = ", but for what its SSD keeps, which is served again when it starts"
    kept = but if reply.left and keeps else ""
    if not reply.nodes:
        return (
            f"there is no other node to take blocks: {reply.left} are lost when this one ends{kept}"
        )
    return (
        f"moved {reply.moved} of {reply.blocks} blocks; {reply.elsewhere} were elsewhere too, "
        f"{reply.left} are left and go with this node{kept}"
    )


def _bar() -> Any:
    return tqdm(unit="block", file=sys.stderr, leave=False, disable=None)


def _hash(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Invalid(f"--hash {text!r}: 64 hex digits") from None


def _asked(args: argparse.Namespace, stub: Any) -> tuple[list[bytes], int]:
    """The blocks that are named, none for all that the node has, and how many are to be there.

    A short one at a prompt's end is copied if it is there, and not missed else: engines keep none.
    """
    if args.tokens is None:
        named = list(dict.fromkeys(_hash(text) for text in args.hash))
        return named, len(named)
    blocks = _prompt(args, stub)
    short = len(blocks) > 1 and blocks.tokens[-1] < blocks.block_tokens
    return list(blocks.hashes), len(blocks) - short


def _prompt(args: argparse.Namespace, stub: Any) -> Chain:
    """The prompt's blocks, by the spec that the node knows."""
    known = stub.Stats(pb.StatsRequest(), timeout=DEADLINE_SECONDS).namespaces
    specs = [one.spec for one in known if one.namespace.hex().startswith(args.namespace)]
    if len(specs) != 1:
        names = ", ".join(one.namespace.hex()[:12] for one in known)
        raise Invalid(
            f"--namespace {args.namespace!r} names {len(specs)} namespaces; there are: "
            f"{names or 'none'}"
        )
    spec = KVSpec.parse(specs[0])
    if not 0 <= args.group < len(spec.groups):
        raise Invalid(f"--group {args.group}: the spec has 0..{len(spec.groups) - 1}")
    size = spec.groups[args.group].block_tokens
    return chain(spec.digest, args.group, tokens_of(args.tokens), size)
