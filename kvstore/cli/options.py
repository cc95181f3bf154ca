"""Options that several commands share, spelled once."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from kvstore.address import check_server
from kvstore.codec import CODECS, NONE
from kvstore.config import METADATA_FILE, EtcdConfig, TlsConfig, parse_bytes, state_dir
from kvstore.errors import ConfigError, Invalid, Unavailable
from kvstore.limits import GiB, KiB, MiB
from kvstore.metadata import Metadata, open_metadata
from kvstore.metadata.bounds import INT64_MAX
from kvstore.rpc.channel import open_channel
from kvstore.rpc.locator import FixedAddress, InDirectory, Locator
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import admin_pb2_grpc

# From the environment alone: everybody on the host can see a command line.
_ETCD_USER, _ETCD_PASSWORD = "MOONPOOL_ETCD_USER", "MOONPOOL_ETCD_PASSWORD"
_ETCD_FILES = {
    "ca": "PEM file of the CA that signed etcd's certificate",
    "cert": "PEM file of the certificate that etcd asks for",
    "key": "PEM file of its key",
}
_AT_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # whose, and which
POOL = ("etcd", "cluster", *(f"etcd_{name}" for name in _ETCD_FILES), "metadata")
Commands = Any  # argparse's own type of a group of subcommands is private
Options = argparse.ArgumentParser | argparse._ArgumentGroup  # either takes options


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


def say_ready(address: str, metrics: str, board: str = "") -> None:
    """One line of JSON on stdout, for whoever started this process."""
    said = {"ready": address, "metrics": metrics, "board": board}
    print(json.dumps({name: where for name, where in said.items() if where}), flush=True)


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
        metavar="PATH",
        help="where this host's node keeps metadata and socket (default: $MOONPOOL_DIR, "
        "else ~/.local/state/moonpool)",
    )


def directory(args: argparse.Namespace) -> Path:
    """What `add_directory` says. Raises `ConfigError` where nobody says it and there is no home."""
    return state_dir() if args.dir is None else Path(args.dir)


def add_etcd(parser: argparse.ArgumentParser) -> None:
    """Where the metadata lies that the nodes of several hosts share."""
    parser.add_argument(
        "--etcd",
        metavar="URL[,URL...]",
        help="keep the metadata in etcd, so that all nodes that name it are one pool, like "
        "http://127.0.0.1:2379 or https://a:2379,https://b:2379 (default: a file in --dir, for one "
        f"host). Where etcd knows users, {_ETCD_USER} and {_ETCD_PASSWORD} in the environment say "
        "who we are",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        help="the pool's name in that etcd, where there are several (default: default)",
    )
    for name, text in _ETCD_FILES.items():
        parser.add_argument(f"--etcd-{name}", type=Path, metavar="PATH", help=text)


def etcd(args: argparse.Namespace) -> EtcdConfig | None:
    """What `add_etcd` and the environment say; None without --etcd."""
    settings = {name: value for name, value in _etcd_settings(args).items() if value is not None}
    if args.etcd is None:
        if settings:
            raise ConfigError("--cluster and --etcd-... are for a pool in etcd: give --etcd too")
        return None
    user, password = os.environ.get(_ETCD_USER, ""), os.environ.get(_ETCD_PASSWORD, "")
    if getattr(args, "metadata", None) is not None:  # `up` has no such option
        raise ConfigError("--etcd and --metadata: a pool's metadata is in one of them, give one")
    return EtcdConfig.parse(args.etcd, **settings, user=user, password=password)


def etcd_arguments(args: argparse.Namespace) -> tuple[str, ...]:
    """The same, for the command line of a child, which has our environment too."""
    options = {"--etcd": args.etcd, "--cluster": args.cluster}
    options |= {f"--etcd-{name}": getattr(args, f"etcd_{name}") for name in _ETCD_FILES}
    given = [(name, os.fspath(value)) for name, value in options.items() if value is not None]
    return tuple(part for pair in given for part in pair)


def _etcd_settings(args: argparse.Namespace) -> dict[str, Any]:
    return {"cluster": args.cluster} | {name: getattr(args, f"etcd_{name}") for name in _ETCD_FILES}


def add_metadata(parser: argparse.ArgumentParser) -> None:
    """For several nodes of one host, each of which has a directory of its own."""
    parser.add_argument(
        "--metadata",
        type=Path,
        metavar="FILE",
        help="the metadata that several nodes of this host share (default: metadata.db in --dir)",
    )


def metadata_file(args: argparse.Namespace) -> Path:
    """What `add_directory` and `add_metadata` say: where the metadata is that is in no etcd."""
    found = args.metadata or directory(args) / METADATA_FILE
    return Path(found)


def pool_text(args: argparse.Namespace) -> str:
    """The pool that `add_directory`, `add_etcd` and `add_metadata` name, as a person reads it."""
    shared = etcd(args)
    if shared is None:
        return os.fspath(metadata_file(args))
    return f"cluster {shared.cluster!r} of {','.join(shared.endpoints)}"


def add_codec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--codec",
        choices=CODECS,
        default=NONE,
        help="how the pool keeps blocks: none as they are computed; fp8 and int8 in a byte an "
        "element, not exactly. Part of the namespace (default: %(default)s)",
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
    with admin_at(locator(args).find()) as stub:
        yield stub


@contextmanager
def admin_at(address: str) -> Iterator[Any]:
    """The same of the node at an address."""
    with closing(open_channel(address)) as channel, typed_errors(address):
        yield admin_pb2_grpc.AdminStub(channel)


@asynccontextmanager
async def metadata(args: argparse.Namespace) -> AsyncIterator[Metadata]:
    """The metadata that `add_directory`, `add_etcd` and `add_metadata` name."""
    shared = etcd(args)
    if shared is None and not metadata_file(args).exists():
        raise Unavailable(
            f"no node has kept its metadata in {args.metadata or directory(args)}: start one with "
            "`moonpool up`, or give --metadata or --etcd as the pool's nodes have it"
        )
    store = open_metadata(shared or os.fspath(metadata_file(args)))
    try:
        yield store
    finally:
        await store.close()


def refuse_idle(args: argparse.Namespace, names: Iterable[str], without: str) -> None:
    """Of options that change nothing as things stand: whoever gives one means something by it."""
    for name in names:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} changes nothing {without}")


def locator(args: argparse.Namespace) -> Locator:
    if not args.node:
        return InDirectory(directory(args))
    check_server("--node", args.node)
    return FixedAddress(args.node)


def add_metrics(parser: Options, unless: str = "nowhere") -> None:
    parser.add_argument(
        "--metrics",
        default="",
        metavar="HOST:PORT",
        help="serve this process's metrics there, at /metrics, as Prometheus reads them; they name "
        f"no tenant and no prompt. Port 0 takes a free one (default: {unless})",
    )


def add_tls(parser: Options) -> None:
    """TLS, for a process that serves."""
    for name, text in (
        ("ca", "whose certificates are believed, PEM; without TLS only loopback is served"),
        ("cert", "this process's certificate, as `moonpool certs` makes it"),
        ("key", "its key"),
    ):
        parser.add_argument(f"--tls-{name}", default="", metavar="FILE", help=text)


def tls(args: argparse.Namespace) -> TlsConfig | None:
    given = {"--tls-ca": args.tls_ca, "--tls-cert": args.tls_cert, "--tls-key": args.tls_key}
    return TlsConfig.of(given)


def check_number(option: str, given: int, least: int, most: int) -> None:
    """Before it is put in a message, which refuses it without saying what it was."""
    if not least <= given <= most:
        raise Invalid(f"{option} {given}: {least} to {most}")


def size_of(option: str, text: str) -> int:
    """Of a size that a message or a record is to hold."""
    size = parse_bytes(option, text)
    if size > INT64_MAX:
        raise ConfigError(f"{option} = {text[:64]!r}: less than 8388608TiB is right")
    return size


def check_model(folder: Path) -> None:
    """Raise where --model names no folder: a model's name at the hub looks like one."""
    if folder.exists():
        return
    why = f"--model {folder}: there is no such folder, and nothing is downloaded"
    if _AT_HUB.fullmatch(str(folder)) and not folder.parent.exists():
        why += f": `hf download {folder} --local-dir ./{folder.name}`, then --model ./{folder.name}"
    raise ConfigError(why)


def check_output(option: str, path: Path) -> None:
    """Of a file that is written once all is done, which may take minutes: before any of it is."""
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a directory: name a file")
    if not (parent := path.absolute().parent).is_dir():
        raise ConfigError(f"{option} {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise ConfigError(f"{option} {path}: cannot be written")


def size_text(count: int) -> str:
    """Bytes as a person reads them."""
    for unit, size in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def plain(text: str) -> str:
    """What somebody else has named, as a terminal may have it: control codes are spelled out."""
    return text if text.isprintable() else ascii(text)
