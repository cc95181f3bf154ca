"""`moonpool health`: whether one process serves, as an exit code: for supervisors, containers."""

from __future__ import annotations

import argparse
import http.client

from kvstore.address import check_engine, host_and_port, speaks_http
from kvstore.cli.options import Commands, add_directory, command, directory
from kvstore.config import OPEN, Credentials
from kvstore.errors import Unavailable
from kvstore.rpc.http_answer import answering
from kvstore.rpc.locator import InDirectory

SECONDS = 5.0  # supervisors ask again and again: later is as bad as never
_SAID_BYTES_MAX = 4_096  # of a gateway's reason


def add(commands: Commands) -> None:
    health = command(
        commands,
        "health",
        "exit with 0 if a process serves now, and 1 if it does not or drains",
        "moonpool health\n"
        "  moonpool health 127.0.0.1:7420\n"
        "  moonpool health --plain 127.0.0.1:7501\n"
        "  moonpool health http://127.0.0.1:8000",
    )
    add_directory(health)
    health.add_argument(
        "address",
        nargs="?",
        default="",
        metavar="ADDRESS",
        help="HOST:PORT of a node, conductor or engine, or http://HOST:PORT of a gateway, which is "
        "asked for /ready (default: the node of --dir)",
    )
    health.add_argument(
        "--plain",
        action="store_true",
        help="it serves without TLS, as engines do: show it nothing of MOONPOOL_TLS_... and the "
        "token",
    )
    health.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    address = args.address.rstrip("/")
    if args.address:
        check_engine("ADDRESS", address)
    if speaks_http(address):
        _check_gateway(address)
        return 0
    # gRPC's health service is an extra: only who serves has it.
    from kvstore.rpc.health import check_serves

    shown = OPEN if args.plain else Credentials.of_environment()
    check_serves(address or InDirectory(directory(args)).find(), shown, SECONDS)
    return 0


def _check_gateway(address: str) -> None:
    calling = http.client.HTTPConnection(*host_and_port(address), timeout=SECONDS)
    try:
        with answering(calling, "/ready", SECONDS) as answer:
            if answer.status == http.client.OK:
                return
            said = answer.read(_SAID_BYTES_MAX).decode("utf-8", "replace").strip()
            raise Unavailable(f"{address} is not ready: {said or answer.status}")
    except http.client.HTTPException:
        raise Unavailable(
            f"{address} does not speak HTTP, as a gateway does: write HOST:PORT alone for a node, "
            "conductor or engine"
        ) from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{address} does not answer: {error}") from None
