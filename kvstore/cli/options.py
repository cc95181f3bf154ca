"""Options that several commands share, spelled once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kvstore.config import state_dir
from kvstore.limits import GiB, KiB, MiB
from kvstore.metadata.discovery import FixedAddress, FromMetadata, Locator
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import admin_pb2_grpc

Commands = Any  # argparse's own type of a group of subcommands is private


def command(commands: Commands, name: str, text: str, example: str) -> argparse.ArgumentParser:
    """A subcommand whose help ends with an example."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def share_cores() -> None:
    """Before torch is imported: its idle threads wait asleep instead of spinning.

    Several engines share a host's cores here, and a spinning thread of one can stretch every
    parallel region of another by milliseconds.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        default=state_dir(),
        metavar="PATH",
        help="where this host's node keeps metadata and socket (default: $MOONPOOL_DIR, "
        "else ~/.local/state/moonpool)",
    )


def add_node(parser: argparse.ArgumentParser) -> None:
    """Which node to talk to: the one of a directory, or an address."""
    add_directory(parser)
    parser.add_argument(
        "--node", metavar="HOST:PORT", help="a node's address, instead of finding it in --dir"
    )


@contextmanager
def admin(args: argparse.Namespace) -> Iterator[Any]:
    """The Admin service of the node that `add_node` names; what it refuses is a typed error."""
    address = locator(args).find()
    with closing(open_channel(address)) as channel, typed_errors(address):
        yield admin_pb2_grpc.AdminStub(channel)


def locator(args: argparse.Namespace) -> Locator:
    return FixedAddress(args.node) if args.node else FromMetadata(args.dir)


def size_text(count: int) -> str:
    """Bytes as a person reads them."""
    for unit, size in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
