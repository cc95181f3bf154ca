"""`moonpool explain`: why a request was sent where it was, and what the others would have cost."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvstore.address import check_server
from kvstore.cli.options import Commands, command
from kvstore.errors import Invalid, KVStoreError

if TYPE_CHECKING:
    from kvstore.client.conductors import Conductors
    from kvstore.wire.v1 import conductor_pb2 as pb

MISS = 3  # as of get and match
_COLUMNS = (
    ("engine", "engine", "{}"),
    ("cost", "cost_seconds", "{:.4f} s"),
    ("first token", "first_token_seconds", "{:.4f} s"),
    ("in line", "wait_seconds", "{:.4f} s"),
    ("brought by", "ready_seconds", "{:.4f} s"),
    ("computing", "work_seconds", "{:.4f} s"),
    ("reused", "reused_blocks", "{}"),
    ("fetched", "fetched_blocks", "{}"),
    ("read", "read_blocks", "{}"),
)


def add(commands: Commands) -> None:
    explain = command(
        commands,
        "explain",
        "say why a request was sent where it was, and what the other engines would have cost",
        "moonpool explain cmpl-55669b2cce54-0 --conductor 127.0.0.1:7420",
    )
    explain.add_argument(
        "request",
        help="its id: an answer's `id` with the number of its prompt behind it, as the "
        "gateway's dashboard shows it; the `id` alone is that of the first",
    )
    explain.add_argument(
        "--conductor",
        action="append",
        required=True,
        metavar="HOST:PORT",
        help="ask this one; may be repeated: each remembers its own decisions, the last 4,096",
    )
    explain.add_argument("--json", action="store_true", help="print it as JSON")
    explain.set_defaults(run=run_explain)


def run_explain(args: argparse.Namespace) -> int:
    # The client brings compiled kernels; other commands do without.
    from kvstore.client.conductors import Conductors
    from kvstore.client.explained import facts_of

    for one in args.conductor:
        check_server("--conductor", one)
    with Conductors(args.conductor) as conductors:
        try:
            reply = _explained(conductors, args.request)
        except Invalid as unknown:
            print(f"no conductor remembers {args.request}: {unknown}", file=sys.stderr)
            return MISS
    facts = facts_of(reply)
    print(json.dumps(facts) if args.json else text(facts))
    return 0


def _explained(conductors: Conductors, request: str) -> pb.ExplainReply:
    """Of an answer's id, too: it stands for as many requests as there were prompts, and here for
    that of the first. One of several conductors may be down: raises what was said of the id itself
    where none remembers either."""
    try:
        return conductors.explain(request)
    except KVStoreError:
        with suppress(KVStoreError):
            return conductors.explain(f"{request}-0")
        raise


def text(facts: dict[str, Any]) -> str:
    """The sentence, and a table of the engines that were looked at, the chosen one first."""
    rows = [[head for head, _, _ in _COLUMNS]]
    rows += [[form.format(one[key]) for _, key, form in _COLUMNS] for one in facts["engines"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([facts["sentence"], "", *lines])
