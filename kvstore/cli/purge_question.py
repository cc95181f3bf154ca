"""What is asked before a purge: what goes, as the nodes know it that are to forget it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvstore.cli.options import plain, size_text
from kvstore.errors import Invalid
from kvstore.wire.v1 import admin_pb2 as pb

STATS_SECONDS = 10.0


def meant(request: pb.PurgeRequest, stats: Sequence[pb.StatsReply], of: int = 1) -> str:
    """What these of so many nodes are to forget; the others have not said what they hold. Raises
    `Invalid` where that is nothing of any of them, or more than one namespace."""
    at = "" if of == 1 else f" at {len(stats)} of {of} nodes"
    if len(stats) < of:
        at += ", and what those have that did not answer"
    if request.tenant:
        mine = [one for each in stats for one in each.tenants if one.name == request.tenant]
        used = sum(one.hbm_bytes + one.dram_bytes + one.ssd_bytes for one in mine)
        return f"every block of tenant {request.tenant} ({size_text(used)}){at}"
    known = {one.namespace.hex(): one for each in stats for one in each.namespaces}
    named = [name for name in known if name.startswith(request.namespace)]
    # A node knows those alone that it was asked for since its start.
    if not named and (len(stats) < of or any(one.ssd for one in stats)):
        return f"every block of namespace {request.namespace}, which could be on SSD alone{at}"
    if len(named) != 1:
        names = ", ".join(name[:12] for name in known)
        raise Invalid(
            f"--namespace {request.namespace!r} names {len(named)} namespaces; there are: "
            f"{names or 'none'}"
        )
    [name] = named
    here = [one for each in stats for one in each.namespaces if one.namespace.hex() == name]
    size = size_text(sum(one.blocks * one.block_bytes for one in here))
    blocks = f"all {sum(one.blocks for one in here)} blocks (about {size})"
    return f"{blocks} of namespace {name[:12]} ({plain(known[name].model)}){at}"


def agreed(what: str) -> bool:
    print(f"forget {what}, for good? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was purged: answer y, or give --yes", file=sys.stderr)
    return False
