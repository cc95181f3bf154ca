"""`moonpool tenant` and `moonpool token`: who may use the pool, and the tokens they show.

Both are records in the metadata, so they can be set while no node runs; those that run take them up
at once. A token is printed when it is made and is kept nowhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kvstore.cli.options import (
    Commands,
    add_directory,
    add_etcd,
    add_metadata,
    command,
    metadata,
    pool_text,
)
from kvstore.errors import ConfigError
from kvstore.limits import (
    TENANT_NAME_BYTES_MAX,
    TENANTS_MAX,
    TOKEN_DAYS_DEFAULT,
    TOKEN_DAYS_MAX,
    TOKENS_MAX,
)
from kvstore.metadata import Metadata
from kvstore.metadata.records import BadRecord, TenantRecord, TokenRecord
from kvstore.metadata.tenants import new_tenant
from kvstore.metadata.tokens import ID, id_of, make

T = TypeVar("T")
R = TypeVar("R", TenantRecord, TokenRecord)
_DAY_SECONDS = 86_400
_CLOCKS_APART_SECONDS = _DAY_SECONDS  # at most, between hosts: one that lags takes a token longer
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{TENANT_NAME_BYTES_MAX - 1}}}")


def add(commands: Commands) -> None:
    tenant = _group(
        commands,
        "tenant",
        "add tenants, who share the pool and see nothing of each other",
        "moonpool tenant add team-a",
    )
    add = _one(tenant, "tenant add", "add a tenant", "team-a", run_tenant_add)
    add.add_argument("name", metavar="NAME", help="letters, digits and . _ -")
    _json(_one(tenant, "tenant ls", "list the tenants", "--json", run_tenant_ls))

    token = _group(
        commands,
        "token",
        "make, list and revoke the tokens that clients show over TLS",
        "moonpool token new --tenant team-a > team-a.token",
    )
    new = _one(
        *(token, "token new", "make a token and print it, this once"),
        *("--tenant team-a --days 30 > team-a.token", run_token_new),
    )
    new.add_argument("--tenant", required=True, metavar="NAME", help="whose calls it is for")
    new.add_argument(
        "--admin", action="store_true", help="it may also drain, purge, scrub and see all figures"
    )
    new.add_argument(
        "--days",
        type=int,
        default=TOKEN_DAYS_DEFAULT,
        help="how long it holds (default: %(default)s)",
    )
    _json(_one(token, "token ls", "list the tokens by their ids", "--json", run_token_ls))
    revoke = _one(
        *(token, "token revoke", "end a token; nodes refuse it at once"),
        *('"$(cut -d_ -f2 team-a.token)"', run_token_revoke),
    )
    revoke.add_argument("id", metavar="ID", help="as `moonpool token ls` names it, or the token")


def _group(commands: Commands, name: str, text: str, example: str) -> Commands:
    parser = command(commands, name, text, example)
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _one(
    group: Commands, name: str, text: str, like: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = command(group, name.split()[-1], text, f"moonpool {name} {like}")
    add_directory(parser)
    add_etcd(parser)
    add_metadata(parser)
    parser.set_defaults(run=run)
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run_tenant_add(args: argparse.Namespace) -> int:
    if not _NAME.fullmatch(args.name):
        raise ConfigError(
            f"tenant {args.name!r}: letters, digits and . _ -, at most {TENANT_NAME_BYTES_MAX}, "
            "the first a letter or digit"
        )
    made = new_tenant(args.name)

    async def put(store: Metadata) -> int | None:
        await _check_room(store, TenantRecord.prefix, TENANTS_MAX, "tenants")
        return await store.put_if(made.key(), made.encode(), expected_revision=0)

    if _with_metadata(args, put) is None:
        raise ConfigError(f"tenant {args.name} is there already")
    then = f"`moonpool token new --tenant {args.name}` makes it a token there"
    print(f"added {args.name} to {pool_text(args)}; {then}")
    return 0


async def _check_room(store: Metadata, prefix: str, most: int, what: str) -> None:
    """Raises `ConfigError` where nodes would know no more of these."""
    entries, _ = await store.list(prefix)
    if len(entries) >= most:
        raise ConfigError(f"there are {len(entries)} {what}, and nodes know {most} at most")


def run_tenant_ls(args: argparse.Namespace) -> int:
    for record in _with_metadata(args, lambda store: _all(store, TenantRecord)):
        print(json.dumps({"tenant": record.name}) if args.json else record.name)
    return 0


def run_token_new(args: argparse.Namespace) -> int:
    if not 1 <= args.days <= TOKEN_DAYS_MAX:
        raise ConfigError(f"--days = {args.days}: 1 to {TOKEN_DAYS_MAX}")
    expires = int(time.time()) + args.days * _DAY_SECONDS
    token, record = make(args.tenant, args.admin, expires)

    async def put(store: Metadata) -> bool:
        if await store.get(TenantRecord.prefix + args.tenant) is None:
            return False
        await _remove_over(store)
        await _check_room(store, TokenRecord.prefix, TOKENS_MAX, "tokens")
        await store.put_if(record.key(), record.encode(), expected_revision=0)
        return True

    if not _with_metadata(args, put):
        raise ConfigError(f"there is no tenant {args.tenant!r}: `moonpool tenant add` adds one")
    print(token)
    print(f"token {record.id} of {record.tenant}, shown this once", file=sys.stderr)
    return 0


def run_token_ls(args: argparse.Namespace) -> int:
    now = time.time()
    for one in _with_metadata(args, lambda store: _all(store, TokenRecord)):
        if args.json:
            facts = {"id": one.id, "tenant": one.tenant, "admin": one.admin, "expires": one.expires}
            print(json.dumps(facts))
            continue
        left = (one.expires - now) / _DAY_SECONDS
        when = f"{left:.0f} days left" if left > 0 else "over"
        print(f"{one.id}  {one.tenant:<24} {'admin' if one.admin else '-':<6} {when}")
    return 0


def run_token_revoke(args: argparse.Namespace) -> int:
    name = id_of(args.id.strip()) or args.id
    if not ID.fullmatch(name):  # and not shown: it may hold the secret
        raise ConfigError(
            "that is no token's id, which stands behind `mpt_`: `moonpool token ls` lists them"
        )
    if not _with_metadata(args, lambda store: store.delete(TokenRecord.prefix + name)):
        raise ConfigError(f"there is no token {name!r}: `moonpool token ls` lists them")
    print(f"revoked {name}")
    return 0


async def _remove_over(store: Metadata) -> None:
    """Tokens that no host takes any more: each holds one of the places that a node has for them."""
    since = time.time() - _CLOCKS_APART_SECONDS
    for one in await _all(store, TokenRecord):
        if one.expires < since:
            await store.delete(one.key())


async def _all(store: Metadata, kind: type[R]) -> list[R]:
    """Every record of a kind that can be read."""
    found = []
    entries, _ = await store.list(kind.prefix)
    for entry in entries:
        try:
            found.append(kind.parse(entry))
        except BadRecord as error:
            print(f"moonpool: passed over: {error}", file=sys.stderr)
    return found


def _with_metadata(args: argparse.Namespace, ask: Callable[[Metadata], Awaitable[T]]) -> T:
    async def run() -> T:
        async with metadata(args) as store:
            return await ask(store)

    return asyncio.run(run())
