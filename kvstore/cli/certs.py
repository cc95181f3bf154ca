"""`moonpool certs`: a throw-away authority, and certificates for nodes, conductors and clients."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from kvstore.cli.options import Commands, command
from kvstore.config import TlsConfig
from kvstore.errors import ConfigError
from kvstore.rpc.access import Role

DAYS, DAYS_MAX = 90, 36_500
_HERE = ("localhost", "127.0.0.1", "::1")
_TEACHING = """\
Make an authority in DIR and have it sign certificates; one that is there already
signs more. Every process that talks beyond loopback shows one, and the certificate
says what it is: a node, a conductor or a client. Nothing is overwritten, and none
outlives its authority, which holds as long as the first that it signed.

Without --node, --conductor or --client one of each is made. --host names where the
nodes and conductors serve, as callers will write it; localhost is always among them.

Whoever has ca.key can make more: keep it off the hosts that serve. An authority of
your own does as well: what counts is the URI moonpool:node/NAME, conductor/NAME or
client/NAME among a certificate's subject alternative names.
"""


def add(commands: Commands) -> None:
    certs = command(
        commands,
        "certs",
        "make certificates, so that hosts can talk to each other",
        "moonpool certs ./certs --node a --host 10.0.0.1 --client prefill",
    )
    certs.description = _TEACHING
    certs.add_argument("folder", type=Path, metavar="DIR", help="where they are put")
    for role in (Role.NODE, Role.CONDUCTOR, Role.CLIENT):
        certs.add_argument(
            f"--{role.value}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"a certificate for a {role.value} of this name; several times for several",
        )
    certs.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME|IP",
        help="where nodes and conductors serve; several times for several",
    )
    certs.add_argument(
        "--days", type=int, default=DAYS, help="how long they hold (default: %(default)s)"
    )
    certs.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    # cryptography is an extra: only who serves or signs needs it.
    from kvstore.rpc.authority import Authority, Holder, check_absent

    if not 1 <= args.days <= DAYS_MAX:
        raise ConfigError(f"--days = {args.days}: 1 to {DAYS_MAX}")
    named = {Role(role): getattr(args, role) for role in ("node", "conductor", "client")}
    if not any(named.values()):
        named = {role: [role.value] for role in named}
    holders = [
        Holder(role, name, () if role is Role.CLIENT else (*_HERE, *args.host))
        for role, names in named.items()
        for name in dict.fromkeys(names)
    ]
    known = (args.folder / "ca.pem").exists()
    planned = [one.files(args.folder) for one in holders]
    check_absent([path for one in planned for path in (one.cert, one.key)])
    lifetime = datetime.timedelta(days=args.days)
    authority = Authority.open(args.folder) if known else Authority.make(args.folder, lifetime)
    made = "signed by" if known else "made the authority"
    print(f"{made} {args.folder / 'ca.pem'}, which holds until {authority.ends:%Y-%m-%d}")
    for holder in holders:
        _tell(holder.role, holder.name, authority.sign(holder, lifetime))
    return 0


def _tell(role: Role, name: str, files: TlsConfig) -> None:
    print(f"\n{role.value} {name}: {files.cert}, {files.key}")
    if role is Role.CLIENT:
        print("  its processes find it in their environment:")
        print(f"  export MOONPOOL_TLS_CA={files.ca} MOONPOOL_TLS_CERT={files.cert}")
        print(f"  export MOONPOOL_TLS_KEY={files.key} MOONPOOL_TOKEN_FILE=...")
    else:
        print(f"  moonpool {role.value} --tls-ca {files.ca} --tls-cert {files.cert} \\")
        print(f"    --tls-key {files.key} ...")
