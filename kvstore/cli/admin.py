"""`moonpool stat`, `ls`, `release`: what a node holds and has done, for people and as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

from kvstore.cli.options import (
    Commands,
    add_node,
    admin,
    check_number,
    command,
    plain,
    size_text,
)
from kvstore.limits import LIST_MAX
from kvstore.percent import percent
from kvstore.transfer.probe import Probe
from kvstore.wire.v1 import admin_pb2 as pb

DEADLINE_SECONDS = 10.0


def add(commands: Commands) -> None:
    stat = command(commands, "stat", "show what a node holds and has done", "moonpool stat --json")
    add_node(stat)
    stat.add_argument("--json", action="store_true", help="one JSON object")
    stat.set_defaults(run=run_stat)

    ls = command(
        commands, "ls", "list a node's blocks, most recent first", "moonpool ls --limit 20"
    )
    add_node(ls)
    ls.add_argument(
        "--limit", type=int, default=50, help="at most this many (default: %(default)s)"
    )
    ls.add_argument("--json", action="store_true", help="one JSON object a line")
    ls.set_defaults(run=run_ls)

    release = command(
        commands,
        "release",
        "end the quarantine of a namespace in which wrong KV was found; its blocks are dropped",
        "moonpool release 4fb1e6b33f1f",
    )
    add_node(release)
    release.add_argument("namespace", help="as `moonpool stat` names it; leading digits do")
    release.set_defaults(run=run_release)


def _ask(args: argparse.Namespace, method: str, request: Any) -> Any:
    with admin(args) as stub:
        return getattr(stub, method)(request, timeout=DEADLINE_SECONDS)


def run_stat(args: argparse.Namespace) -> int:
    reply = _ask(args, "Stats", pb.StatsRequest())
    facts = {
        "node": reply.node_id,
        "epoch": reply.epoch,
        "state": reply.state,
        "arena_bytes": reply.arena_bytes,
        "slabs": reply.slabs,
        "slabs_empty": reply.slabs_empty,
        "blocks": reply.blocks,
        "blocks_unlisted": reply.blocks_unlisted,
        "windows": reply.windows,
        "pins": reply.pins,
        "sessions": reply.sessions,
        "resident_bytes": reply.resident_bytes,
        "counters": dict(sorted(reply.counters.items())),
        "namespaces": [
            {
                "namespace": one.namespace.hex(),
                "model": one.model,
                "blocks": one.blocks,
                "block_bytes": one.block_bytes,
                "spec": json.loads(one.spec),
                "quarantined": one.quarantined,
            }
            for one in reply.namespaces
        ],
        "ssd": [
            {
                "path": one.path,
                "size_bytes": one.size_bytes,
                "files": one.files,
                "retired_files": one.retired_files,
                "cause": one.cause,
            }
            for one in reply.ssd
        ],
        "hbm": {
            "device": reply.hbm.device,
            "size_bytes": reply.hbm.size_bytes,
            "used_bytes": reply.hbm.used_bytes,
            "cause": reply.hbm.cause,
        }
        if reply.HasField("hbm")
        else None,
        "numa": [
            {"node": one.numa_node, "slabs": one.slabs, "slabs_empty": one.slabs_empty}
            for one in reply.numa
        ],
        "contacts": [contact_facts(one) for one in reply.contacts],
    }
    if args.json:
        print(json.dumps(facts))
        return 0
    print(f"node {reply.node_id}, epoch {reply.epoch}, {reply.state}")
    arena = size_text(reply.arena_bytes)
    print(f"memory    {arena} in {reply.slabs} slabs, {reply.slabs_empty} empty")
    for share in reply.numa:
        print(f"numa {share.numa_node:<4} {share.slabs} of the slabs, {share.slabs_empty} empty")
    if reply.hbm.size_bytes:
        sizes = f"{size_text(reply.hbm.used_bytes)} of {size_text(reply.hbm.size_bytes)}"
        print(f"hbm       {sizes} in use, of GPU {reply.hbm.device}")
        if reply.hbm.cause:
            print(f"          it is lost, and takes no more blocks: {reply.hbm.cause}")
    elif reply.HasField("hbm"):
        print(f"hbm       none: {reply.hbm.cause}")
    for one in reply.ssd:
        print(f"ssd       {one.path}: {size_text(one.size_bytes)} in {one.files} files")
        if one.retired_files:
            print(f"          {one.retired_files} of them take no more blocks: {one.cause}")
    for contact in reply.contacts:
        for way, rates in contact_facts(contact)["transports"].items():
            there, back = (rates[f"{one}_bytes_per_second"] / 1e9 for one in ("there", "back"))
            print(f"peer      {contact.address}: {way} {there:.3g} GB/s there, {back:.3g} back")
    print(f"blocks    {reply.blocks} sealed, {reply.blocks_unlisted} of them behind a hole")
    print(f"in use    {reply.windows} windows, {reply.pins} pins, {reply.sessions} sessions")
    asked, hit = reply.counters["query_tokens"], reply.counters["hit_tokens"]
    found = f"{percent(hit / asked)} of {asked} tokens asked for" if asked else "-"
    print(f"hit rate  {found}")
    for one in reply.namespaces:
        name, model = one.namespace.hex()[:12], plain(one.model)
        print(f"  {name}  {model}: {one.blocks} blocks of {size_text(one.block_bytes)}")
        if one.quarantined:
            print(f"    in quarantine, so neither read nor written: {plain(one.quarantined)}")
    counted = {name: value for name, value in sorted(reply.counters.items()) if value}
    print("since its start:" if counted else "since its start: nothing yet")
    for name, value in counted.items():
        print(f"  {name:<24} {size_text(value) if name.endswith('_bytes') else value}")
    return 0


def contact_facts(contact: pb.ContactStats) -> dict[str, Any]:
    """What a node has measured of the transports to another; of one that does not work nothing."""
    return {
        "node": contact.node_id,
        "address": contact.address,
        "seconds_ago": contact.seconds_ago,
        "transports": {
            one.name: {name: getattr(one, name) for name in Probe.__dataclass_fields__}
            for one in contact.transports
            if one.there_bytes_per_second
        },
    }


def run_ls(args: argparse.Namespace) -> int:
    check_number("--limit", args.limit, 1, LIST_MAX)
    request = pb.ListRequest(limit=args.limit)
    with admin(args) as stub:
        for one in stub.List(request, timeout=DEADLINE_SECONDS):
            facts = {
                "block": one.block,
                "parent": one.parent,
                "namespace": one.namespace.hex()[:12],
                "group": one.group,
                "tokens": one.tokens,
                "pins": one.pins,
                "listed": one.listed,
                "root": one.root.hex(),
            }
            if args.json:
                print(json.dumps(facts))
            else:
                state = "" if one.listed else "  unlisted"
                print(f"{one.block}  after {one.parent or '-':<12}  {one.tokens:>5} tokens{state}")
    return 0


def run_release(args: argparse.Namespace) -> int:
    reply = _ask(args, "Release", pb.ReleaseRequest(namespace=args.namespace))
    print(f"released {reply.namespace.hex()[:12]}; {reply.dropped_blocks} blocks dropped")
    return 0
