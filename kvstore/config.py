"""Settings, in one typed place: built once at the edge of a process and passed whole.

A wrong setting is a `ConfigError` that names its key and the fix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from kvstore.address import check_engine, check_server
from kvstore.errors import ConfigError, Invalid
from kvstore.limits import (
    LABEL_BYTES_MAX,
    LEASE_MS_DEFAULT,
    LINK_SPEEDS,
    SCRUB_RATE_DEFAULT,
    TARGET_MS_MAX,
    TPOT_MS_DEFAULT,
    TTFT_MS_DEFAULT,
    GiB,
    KiB,
    MiB,
)

_SIZES = (("GiB", GiB), ("MiB", MiB), ("KiB", KiB), ("", 1))
_UNITS = {"": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "tib": 1024 * GiB}
METADATA_FILE = "metadata.db"  # in a node's directory
DEFAULT_TENANT = "default"  # whose calls are those of callers without identity
CREDENTIALS = (  # variables that say what a caller shows of itself
    *("MOONPOOL_TLS_CA", "MOONPOOL_TLS_CERT", "MOONPOOL_TLS_KEY"),
    *("MOONPOOL_TOKEN", "MOONPOOL_TOKEN_FILE"),
)
_SOCKET_PATH_BYTES_MAX = 107  # sun_path of a Unix socket, less its final zero


def in_units(size: int) -> str:
    """As `parse_bytes` takes it."""
    name, unit = next((name, unit) for name, unit in _SIZES if not size % unit)
    return f"{size // unit}{name}"


def parse_bytes(key: str, text: str) -> int:
    """'8GiB' -> bytes. Units are powers of 1,024: KiB, MiB, GiB, TiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text.strip())
    if not match or match[2].lower() not in _UNITS:
        raise ConfigError(f"{key} = {text!r}: write a size like 512MiB or 8GiB")
    return int(Decimal(match[1]) * _UNITS[match[2].lower()])  # a float would lose bytes


def label(text: str) -> tuple[str, str]:
    """'rack=r7' -> ('rack', 'r7')"""
    name, _, value = text.partition("=")
    if not (name and value and text.isprintable() and len(text) <= 256):
        raise ConfigError(f"--label = {text[:256]!r}: write NAME=VALUE, as in rack=r7")
    return name, value


def state_dir() -> Path:
    """Where a host keeps Moonpool's metadata and sockets unless told otherwise."""
    if given := os.environ.get("MOONPOOL_DIR"):
        return Path(given)
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "moonpool"
    try:
        return Path.home() / ".local" / "state" / "moonpool"
    except RuntimeError:  # as of a container's user that no file knows
        raise ConfigError(
            "no home folder of this user is known: give --dir PATH or set MOONPOOL_DIR"
        ) from None


def host_name() -> str:
    """What tells this machine, as long as it is up, from all others: who shares it shares memory.

    $MOONPOOL_HOST overrides it, for hosts that are namespaces of one kernel.
    """
    given = os.environ.get("MOONPOOL_HOST")
    return given or Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """Where the metadata of a pool of several hosts lies, and what etcd is shown."""

    endpoints: tuple[str, ...]  # all http://HOST:PORT, or all https://
    cluster: str = "default"  # pools of different names share an etcd and nothing else
    ca: Path | None = None  # PEM; without one, the CAs that gRPC brings along
    cert: Path | None = None  # PEM, with its key, where etcd asks for one
    key: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str, **settings: Any) -> EtcdConfig:
        """'http://10.0.0.1:2379,http://10.0.0.2:2379'"""
        return cls(tuple(one.strip().rstrip("/") for one in text.split(",")), **settings)

    @property
    def secure(self) -> bool:
        return self.endpoints[0].startswith("https://")

    def __post_init__(self) -> None:
        if any("@" in one for one in self.endpoints):  # none is shown: it holds a password
            raise ConfigError(
                "--etcd names a user: set MOONPOOL_ETCD_USER and MOONPOOL_ETCD_PASSWORD instead, "
                "for everybody on the host sees a command line, and write http://HOST:PORT alone"
            )
        for one in self.endpoints:
            found = re.fullmatch(r"https?://(\[[0-9a-fA-F:.%]+\]|[^\s/:\[\]]+):(\d{1,5})", one)
            if not found or not 0 < int(found[2]) < 65_536:
                raise ConfigError(
                    f"--etcd = {one!r}: write http://HOST:PORT or https://HOST:PORT, several with "
                    "commas between them"
                )
        if len({one.partition("://")[0] for one in self.endpoints}) != 1:
            raise ConfigError("--etcd names http:// and https://: all endpoints take one of them")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.cluster):
            raise ConfigError(f"--cluster = {self.cluster!r}: 1 to 64 of letters, digits and . _ -")
        if (self.cert is None) != (self.key is None):
            raise ConfigError("--etcd-cert and --etcd-key belong together: name both")
        if not self.secure and (self.ca or self.cert):
            raise ConfigError("--etcd-ca and --etcd-cert are for https:// endpoints")
        if bool(self.user) != bool(self.password):
            raise ConfigError("set MOONPOOL_ETCD_USER and MOONPOOL_ETCD_PASSWORD, or neither")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Where a process's certificate lies, and whom it believes: PEM files, which may be renewed."""

    ca: Path  # whoever this authority signed is believed
    cert: Path  # its role is a URI in it: see `moonpool certs`
    key: Path

    @classmethod
    def of(cls, given: Mapping[str, str]) -> TlsConfig | None:
        """From the three paths, by the names under which a user gave them; all of them or none."""
        missing = [name for name, path in given.items() if not path]
        if len(missing) == len(given):
            return None
        if missing:
            raise ConfigError(f"TLS takes {', '.join(given)}: {', '.join(missing)} is not given")
        return cls(*map(Path, given.values()))


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller shows: its certificate, and the token that says whose calls these are."""

    tls: TlsConfig | None = None
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.token and self.tls is None:
            raise ConfigError(
                "a token is sent over TLS only: name MOONPOOL_TLS_CA, MOONPOOL_TLS_CERT and "
                "MOONPOOL_TLS_KEY too, or no token"
            )
        if not (self.token.isascii() and self.token.isprintable()):
            raise ConfigError("the token is no printable text: write it as `moonpool token` did")

    @classmethod
    def of_environment(cls) -> Credentials:
        """As MOONPOOL_TLS_CA, _CERT, _KEY and MOONPOOL_TOKEN, or MOONPOOL_TOKEN_FILE, say."""
        given = {name: os.environ.get(name, "") for name in CREDENTIALS}
        token, file = given.pop("MOONPOOL_TOKEN"), given.pop("MOONPOOL_TOKEN_FILE")
        if token and file:
            raise ConfigError(
                "MOONPOOL_TOKEN and MOONPOOL_TOKEN_FILE are set: one of them is enough"
            )
        if file:
            try:
                token = Path(file).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"MOONPOOL_TOKEN_FILE = {file!r} cannot be read: {error}"
                ) from None
        return cls(TlsConfig.of(given), token)


OPEN = Credentials()  # to a process on this host that serves without TLS


@dataclass(frozen=True, slots=True)
class Stands:
    """Where an engine's host stands, as whoever runs it says; what is empty nobody knows."""

    rack: str = ""
    cross_rack_bytes_per_second: float = 0.0  # to or from another one; 0: as over the link
    nvlink_domain: str = ""
    nvlink_bytes_per_second: float = 0.0  # that KV moves at within that domain

    def __post_init__(self) -> None:
        for name in ("rack", "nvlink_domain"):
            text = getattr(self, name)
            if not (text.isprintable() and len(text.encode()) <= LABEL_BYTES_MAX):
                most = f"at most {LABEL_BYTES_MAX} bytes of printable text"
                raise ConfigError(f"{name} = {text[:LABEL_BYTES_MAX]!r}: {most} are right")
        for name in ("cross_rack_bytes_per_second", "nvlink_bytes_per_second"):
            speed, (slowest, fastest) = getattr(self, name), LINK_SPEEDS
            if speed and not slowest <= speed <= fastest:
                raise ConfigError(f"{name} = {speed}: from {slowest:g} to {fastest:g} is right")
        if self.cross_rack_bytes_per_second and not self.rack:
            raise ConfigError("cross_rack_bytes_per_second: say too which `rack` the host is in")
        if bool(self.nvlink_domain) != bool(self.nvlink_bytes_per_second):
            raise ConfigError(
                "nvlink_domain, nvlink_bytes_per_second: say both, which it is and what it carries"
            )


@dataclass(frozen=True, slots=True)
class SsdConfig:
    """One path of a node's SSD tier."""

    path: Path
    size_bytes: int
    buffered: bool = False  # through the system's page cache: for filesystems without O_DIRECT

    @classmethod
    def parse(cls, text: str, *, buffered: bool) -> SsdConfig:
        """'/data/moonpool:200GiB'"""
        path, colon, size = text.rpartition(":")
        if not (path and colon):
            raise ConfigError(f"--ssd = {text!r}: write PATH:SIZE, as in /data/moonpool:200GiB")
        return cls(Path(path), parse_bytes("--ssd", size), buffered)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A storage node. Sizes in bytes."""

    directory: Path  # metadata, socket, node id; one node a directory
    listen: str = "127.0.0.1:0"
    advertise: str = ""  # the host under which others reach this one; empty: as it listens
    data_port: int = 0  # for blocks' bytes to and from other hosts; 0 takes a free one
    dram_bytes: int = 1 * GiB
    hbm_bytes: int = 0  # of one GPU, for blocks of this host's engines on it; 0: none
    hbm_device: int = 0  # which GPU, as CUDA numbers those that this process sees
    slab_bytes: int = 32 * MiB
    numa: str = "auto"  # "auto" spreads DRAM over the host's NUMA nodes; "off": as the kernel does
    lease_ms: int = LEASE_MS_DEFAULT
    ssd: tuple[SsdConfig, ...] = ()
    scrub_rate: int = SCRUB_RATE_DEFAULT  # bytes a second; 0: the node verifies nothing by itself
    transports: tuple[str, ...] = ("tcp",)  # by which blocks go to other hosts, beside "tcp": "ucx"
    etcd: EtcdConfig | None = None  # where several hosts share one pool; else a file in `directory`
    metadata: Path | None = None  # a file that several nodes of this host share; None: its own
    tls: TlsConfig | None = None  # None: loopback only, and open to every caller there
    labels: tuple[tuple[str, str], ...] = ()  # where the node stands: copies are kept apart
    metrics: str = ""  # HOST:PORT at which Prometheus reads them; empty: nowhere

    def __post_init__(self) -> None:
        if self.slab_bytes < 64 * KiB or self.slab_bytes % (4 * KiB):
            raise ConfigError(f"node.slab = {self.slab_bytes}: a multiple of 4KiB, 64KiB or more")
        if self.dram_bytes < self.slab_bytes:
            raise ConfigError(
                f"--dram {in_units(self.dram_bytes)}: write at least --slab, "
                f"{in_units(self.slab_bytes)}"
            )
        if 0 < self.hbm_bytes < self.slab_bytes:
            raise ConfigError(
                f"--hbm {in_units(self.hbm_bytes)}: write at least --slab, "
                f"{in_units(self.slab_bytes)}"
            )
        if not 0 <= self.data_port <= 65_535:
            raise ConfigError(f"node.data_port = {self.data_port}: 1 to 65535, or 0 for a free one")
        if self.hbm_device < 0:
            raise ConfigError(f"node.hbm_device = {self.hbm_device}: 0 for the first GPU, or more")
        if self.numa not in ("auto", "off"):
            raise ConfigError(f"node.numa = {self.numa!r}: auto or off")
        self._check_ssd()
        if set(self.transports) not in ({"tcp"}, {"tcp", "ucx"}):
            raise ConfigError(
                f"node.transports = {','.join(self.transports)}: tcp, or tcp,ucx (calls of either "
                "go over tcp connections)"
            )
        if not 200 <= self.lease_ms <= 60_000:
            raise ConfigError(f"node.lease_ms = {self.lease_ms}: 200 to 60000")
        if len(os.fsencode(self.shm_socket)) > _SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"node.dir = {self.directory}: too long for a Unix socket in it "
                f"(at most {_SOCKET_PATH_BYTES_MAX} bytes with the socket's name)"
            )

    def _check_ssd(self) -> None:
        named: dict[Path, Path] = {}
        for ssd in self.ssd:
            if ssd.size_bytes < self.slab_bytes:
                raise ConfigError(
                    f"--ssd {ssd.path}:{in_units(ssd.size_bytes)}: write at least --slab, "
                    f"{in_units(self.slab_bytes)}"
                )
            other = named.setdefault(ssd.path.resolve(), ssd.path)
            if other is not ssd.path:
                raise ConfigError(
                    f"node.ssd = {other} and {ssd.path} are one directory: give each path once, "
                    "with its whole size"
                )

    @property
    def shm_socket(self) -> Path:
        return self.directory / "node.sock"

    @property
    def metadata_file(self) -> Path:
        return self.metadata or self.directory / METADATA_FILE

    @property
    def lock_file(self) -> Path:
        return self.directory / "node.lock"

    @property
    def id_file(self) -> Path:
        return self.directory / "node.id"


@dataclass(frozen=True, slots=True)
class ConductorConfig:
    """A conductor. It keeps nothing of its own."""

    metadata: Path  # of the nodes that it follows, where no etcd is named
    listen: str = "127.0.0.1:0"
    lease_ms: int = LEASE_MS_DEFAULT
    etcd: EtcdConfig | None = None
    advertise: str = ""  # as of a node
    tls: TlsConfig | None = None  # as in NodeConfig
    # Of requests that name no target of their own: until the first token, and for each after it.
    ttft_ms: int = TTFT_MS_DEFAULT
    tpot_ms: int = TPOT_MS_DEFAULT
    metrics: str = ""  # as in NodeConfig

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if not 0 < value <= TARGET_MS_MAX:
                raise ConfigError(f"conductor.{name} = {value}: write 1 to {TARGET_MS_MAX}")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What speaks HTTP before a pool's engines."""

    model: Path  # the folder that the engines have: its tokenizer, and which weights they are
    name: str = ""  # by which callers ask for the model; empty: the folder's
    listen: str = "127.0.0.1:8000"
    conductors: tuple[str, ...] = ()  # HOST:PORT each
    engines: tuple[str, ...] = ()  # known even while no conductor answers: see kvstore.address
    metrics: str = ""  # HOST:PORT; empty: a free port of loopback, as it reads them itself
    watch: tuple[str, ...] = ()  # HOST:PORT at which others' are read, for the dashboard
    # HOST:PORT of its own for that; empty: it is at `listen`, unless that is for those with keys.
    board: str = ""
    revision: str = ""  # of the weights, as engines say it; empty: a digest of the folder's
    keys: Path | None = None  # a file of those that callers show; None: everybody may call
    # Tokens of a prompt and its answer, as vLLM servers were told; None: all positions it has.
    max_model_len: int | None = None
    # Of an answer for which its caller names no length, at most; None: what there is place for.
    answer_tokens: int | None = None
    adapters: tuple[str, ...] = ()  # LoRA adapters, by the names that vLLM servers have for them

    def __post_init__(self) -> None:
        names = (self.served_name, *self.adapters)
        for at, one in enumerate(self.adapters, 1):
            if not one or one in names[:at]:
                raise ConfigError(f"--adapter = {one!r}: write a name that is no other's")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"--max-model-len = {self.max_model_len}: write 1 or more")
        if self.answer_tokens is not None and self.answer_tokens < 1:
            raise ConfigError(f"--answer-tokens = {self.answer_tokens}: write 1 or more")
        if not (self.conductors or self.engines):
            raise ConfigError("name who knows engines with --conductor, or one with --engine")
        try:
            for one in self.conductors:
                check_server("--conductor", one)
            for one in self.engines:
                check_engine("--engine", one)
        except Invalid as error:
            raise ConfigError(str(error)) from None

    @property
    def served_name(self) -> str:
        return self.name or self.model.resolve().name
