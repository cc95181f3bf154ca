"""`moonpool share`: what each tenant of a node is granted and uses, and the way to change it.

A share is a record in the metadata, so it can be set while no node runs, and holds over restarts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace

from kvstore.cli.options import (
    POOL,
    Commands,
    add_directory,
    add_etcd,
    add_metadata,
    admin,
    command,
    metadata,
    refuse_idle,
    size_of,
    size_text,
)
from kvstore.config import DEFAULT_TENANT
from kvstore.errors import ConfigError, Unavailable
from kvstore.metadata import Metadata
from kvstore.metadata.records import (
    WEIGHT_MAX,
    WEIGHT_MIN,
    BadRecord,
    ShareRecord,
    TenantRecord,
)
from kvstore.wire.v1 import admin_pb2 as pb

DEADLINE_SECONDS = 10.0
_NO_QUOTA = "none"
_TEACHING = """\
Show what each tenant of this host's node is granted and uses; with a name, grant it.

When a tier is full, room is made by whoever has more than its due: what a tenant
has is divided by its weight, and those who come out highest give way first, the
asking tenant among them. So a weight reserves nothing: a tenant that is alone may
use everything, and one that keeps to its due loses nothing to one that does not.
A tenant of weight 3 is due three times what one of weight 1 is.

A quota is the most a tenant may have of each tier (DRAM, SSD), however free the
rest is; at its quota a tenant makes room for itself by its own coldest blocks.

Nodes take a change up within a few seconds. Callers of a node without TLS are all
the tenant `default`; over TLS a caller's token says whose it is.
"""


def add(commands: Commands) -> None:
    share = command(
        commands,
        "share",
        "show or set tenants' weights and quotas",
        "moonpool share default --weight 2 --quota 8GiB",
    )
    share.description = _TEACHING
    add_directory(share)
    add_etcd(share)
    add_metadata(share)
    share.add_argument("name", nargs="?", metavar="NAME", help="the tenant to set")
    share.add_argument(
        "--weight",
        type=float,
        help=f"{WEIGHT_MIN:g} to {WEIGHT_MAX:g}; a tenant with none set has 1",
    )
    share.add_argument("--quota", metavar="SIZE|none", help="of each tier, like 8GiB")
    share.add_argument("--json", action="store_true", help="one JSON object")
    share.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    changes = args.weight is not None or args.quota is not None
    if args.name is None and changes:
        raise ConfigError("whose share? write moonpool share NAME --weight 2 --quota 8GiB")
    if args.name is not None and not changes:
        raise ConfigError(f"say what {args.name} is granted: --weight 2, --quota 8GiB, or both")
    if args.weight is not None and not WEIGHT_MIN <= args.weight <= WEIGHT_MAX:
        raise ConfigError(f"--weight {args.weight:g}: write {WEIGHT_MIN:g} to {WEIGHT_MAX:g}")
    return _set(args) if changes else _show(args)


def _show(args: argparse.Namespace) -> int:
    refuse_idle(args, POOL, "without NAME: what is shown the node of --dir says")
    args.node = None
    with admin(args) as stub:
        tenants = stub.Stats(pb.StatsRequest(), timeout=DEADLINE_SECONDS).tenants
    if args.json:
        facts = [
            {
                **_facts(ShareRecord(one.name, one.weight, one.bytes_max)),
                "dram_bytes": one.dram_bytes,
                "ssd_bytes": one.ssd_bytes,
                "hbm_bytes": one.hbm_bytes,
            }
            for one in tenants
        ]
        print(json.dumps({"tenants": facts}))
        return 0
    print(f"{'tenant':<24} {'weight':>8} {'quota':>12} {'HBM':>12} {'DRAM':>12} {'SSD':>12}")
    for one in tenants:
        quota = size_text(one.bytes_max) if one.bytes_max else _NO_QUOTA
        sizes = (one.hbm_bytes, one.dram_bytes, one.ssd_bytes)
        uses = " ".join(f"{size_text(size):>12}" for size in sizes)
        print(f"{one.name:<24} {one.weight:>8g} {quota:>12} {uses}")
    print("as this node knows it, which takes a change up within a few seconds")
    return 0


def _set(args: argparse.Namespace) -> int:
    record = asyncio.run(_stored(args, _quota(args.quota)))
    if args.json:
        print(json.dumps(_facts(record)))
        return 0
    words = f"a quota of {size_text(record.bytes_max)} of each tier" if record.bytes_max else None
    print(f"{record.name}: weight {record.weight:g}, {words or 'no quota'}")
    return 0


async def _stored(args: argparse.Namespace, bytes_max: int | None) -> ShareRecord:
    """The share after what is given was changed in it; what is None stays as it was."""
    name, weight = args.name, args.weight
    async with metadata(args) as store:
        record, revision = await _found(store, name)
        if weight is not None:
            record = replace(record, weight=weight)
        if bytes_max is not None:
            record = replace(record, bytes_max=bytes_max)
        await _check_known(store, name)
        put = await store.put_if(record.key(), record.encode(), expected_revision=revision)
    if put is None:
        raise Unavailable(f"the share of {name} was changed by another meanwhile: set it again")
    return record


async def _found(store: Metadata, name: str) -> tuple[ShareRecord, int]:
    """A tenant's share, and the revision at which it stands."""
    fair = ShareRecord(name, weight=1.0, bytes_max=0)
    entry = await store.get(fair.key())
    if entry is None:
        return fair, 0
    try:
        return ShareRecord.parse(entry), entry.revision
    except BadRecord:  # no node counts it: it is written anew
        return fair, entry.revision


async def _check_known(store: Metadata, name: str) -> None:
    if name != DEFAULT_TENANT and await store.get(TenantRecord.prefix + name) is None:
        raise ConfigError(
            f"there is no tenant {name!r}: `moonpool tenant ls` names those there are, and "
            "`moonpool tenant add` adds one"
        )


def _quota(text: str | None) -> int | None:
    if text is None:
        return None
    if text == _NO_QUOTA:
        return 0
    size = size_of("--quota", text)
    if not size:
        raise ConfigError(f"--quota = {text!r}: write a size above 0, or none for no quota")
    return size


def _facts(record: ShareRecord) -> dict[str, object]:
    return {
        "tenant": record.name,
        "weight": record.weight,
        "quota_bytes": record.bytes_max or None,
    }
