"""Real etcd for tests: processes on free loopback ports, each with data of its own.

An etcd dies with the test process, however that ends: the kernel sees to it. What a test does to
one (kill, stop, restart on the same data and port) it does by its pid.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from aetcd.rpc import auth_pb2
from aetcd.rpc import rpc_pb2 as pb
from aetcd.rpc import rpc_pb2_grpc as stubs

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
PAUSE_SECONDS = 30.0
_PORT_MIN = 12_000  # below are those that services have by custom
_ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL"]  # of util-linux; becomes what it starts


def have_etcd() -> bool:
    return shutil.which("etcd") is not None


def need_etcd() -> None:
    """Skips a test where there is no etcd to run."""
    if not have_etcd():
        pytest.skip("no etcd here: on Debian and Ubuntu, apt-get install etcd-server")


@dataclass(frozen=True)
class Certificates:
    """Of one CA that nobody else knows: a server's and a client's, for 127.0.0.1."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl here to make certificates with")
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder / "ca.pem", folder / "one.pem", folder / "one.key")
        ca_key = folder / "ca.key"
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        new += ["-nodes", "-days", "2"]
        _run(*new, "-subj", "/CN=CA of a test", "-keyout", ca_key, "-out", made.ca)
        one = ["-subj", "/CN=one", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        one += ["-addext", "basicConstraints=critical,CA:FALSE"]
        one += ["-addext", "extendedKeyUsage=serverAuth,clientAuth"]
        signed = ["-CA", made.ca, "-CAkey", ca_key]
        _run(*new, *one, *signed, "-keyout", made.key, "-out", made.cert)
        return made


class EtcdProcess:
    """One member. Without `peers` it is an etcd of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "one",
        host: str = "127.0.0.1",  # where callers reach it
        certificates: Certificates | None = None,
        peers: dict[str, str] | None = None,  # name to peer URL, of all members
    ) -> None:
        self.directory, self.name, self.certificates = directory, name, certificates
        scheme = "https" if certificates else "http"
        self.address = f"{host}:{free_port()}"
        self.url = f"{scheme}://{self.address}"
        self._peers = peers or {name: f"http://127.0.0.1:{free_port()}"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Return once it answers."""
        self.begin()
        self.wait_ready()
        return self

    def begin(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        own = self._peers[self.name]
        options = {
            "name": self.name,
            "data-dir": self.directory / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": own,
            "initial-advertise-peer-urls": own,
            "initial-cluster": ",".join(f"{name}={url}" for name, url in self._peers.items()),
        }
        if self.certificates:
            options |= {
                "cert-file": self.certificates.cert,
                "key-file": self.certificates.key,
                "trusted-ca-file": self.certificates.ca,
                "client-cert-auth": "true",
            }
        with (self.directory / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_ENDS_WITH_US, "etcd", *(f"--{name}={value}" for name, value in options.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert self._process is not None and self._process.poll() is None, self.log
            try:
                self.call("Maintenance", "Status", pb.StatusRequest(), seconds=1.0)
                return
            except grpc.RpcError:
                assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "etcd.log").read_text(errors="replace")[-2_000:]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Silent once this returns: its kernel still takes what is sent."""
        os.kill(self.pid, signal.SIGSTOP)
        # Each thread stops by itself, and on a busy machine one may answer a call before it does.
        ends = time.monotonic() + PAUSE_SECONDS
        while not all(map(_stopped, Path(f"/proc/{self.pid}/task").iterdir())):
            assert time.monotonic() < ends, "etcd does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Killed, and started again on the same data and port."""
        self.kill()
        self.start()

    def forget(self) -> None:
        """Killed, and started again with nothing, on the same port."""
        self.kill()
        shutil.rmtree(self.directory / "data")
        self.start()

    def save(self) -> Path:
        """Killed, its data copied, and started again; where the copy is."""
        self.kill()
        copy = shutil.copytree(self.directory / "data", self.directory / "saved")
        self.start()
        return copy

    def restore(self, copy: Path) -> None:
        """Killed, and started again on a copy of its data, on the same port."""
        self.kill()
        shutil.rmtree(self.directory / "data")
        shutil.copytree(copy, self.directory / "data")
        self.start()

    def call(
        self, service: str, method: str, request: Any, *, seconds: float = 10.0, token: str = ""
    ) -> Any:
        """One call of etcd's own API."""
        with self._channel() as channel:
            stub = getattr(stubs, f"{service}Stub")(channel)
            metadata = [("token", token)] if token else []
            return getattr(stub, method)(request, timeout=seconds, metadata=metadata)

    def compact(self) -> int:
        """Everything before the present revision is forgotten; the revision."""
        head = self.call("KV", "Range", pb.RangeRequest(key=b"x")).header.revision
        self.call("KV", "Compact", pb.CompactionRequest(revision=head, physical=True))
        return int(head)

    def revoke_all(self) -> None:
        """End every lease, so that none ends later and surprises another test."""
        for lease in self.call("Lease", "LeaseLeases", pb.LeaseLeasesRequest()).leases:
            self.call("Lease", "LeaseRevoke", pb.LeaseRevokeRequest(ID=lease.ID))

    def ask_for_users(self, user: str, password: str, prefix: bytes) -> None:
        """From now on `user` may use what lies below `prefix`, `root` everything."""
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        both = auth_pb2.Permission(
            permType=auth_pb2.Permission.READWRITE, key=prefix, range_end=end
        )
        for name, secret, role in (("root", "root", "root"), (user, password, "pool")):
            self.call("Auth", "UserAdd", pb.AuthUserAddRequest(name=name, password=secret))
            self.call("Auth", "RoleAdd", pb.AuthRoleAddRequest(name=role))
            self.call("Auth", "UserGrantRole", pb.AuthUserGrantRoleRequest(user=name, role=role))
        grant = pb.AuthRoleGrantPermissionRequest(name="pool", perm=both)
        self.call("Auth", "RoleGrantPermission", grant)
        self.call("Auth", "AuthEnable", pb.AuthEnableRequest())

    def root_token(self) -> str:
        asked = pb.AuthenticateRequest(name="root", password="root")
        return str(self.call("Auth", "Authenticate", asked).token)

    def _channel(self) -> grpc.Channel:
        target, options = self.address, [("grpc.use_local_subchannel_pool", 1)]
        if not self.certificates:
            return grpc.insecure_channel(target, options)
        ca, key, cert = (
            path.read_bytes()
            for path in (self.certificates.ca, self.certificates.key, self.certificates.cert)
        )
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(ca, key, cert), options)

    def _end(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def three_members(directory: Path) -> list[EtcdProcess]:
    """An etcd of three, started."""
    peers = {name: f"http://127.0.0.1:{free_port()}" for name in ("one", "two", "three")}
    members = [EtcdProcess(directory / name, name=name, peers=peers) for name in peers]
    for member in members:
        member.begin()
    for member in members:
        member.wait_ready()
    return members


def _stopped(task: Path) -> bool:
    """Whether a thread of a process runs no more until it is told to."""
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True  # it ended
    return state == "T"


def free_port() -> int:
    """One that the kernel gives to nobody who asks for any: it stays free until something serves
    there, and while that is down, however many connections others make meanwhile."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    dice = random.SystemRandom()  # two runs at once, of one seed, want other ports
    for port in (*(dice.randrange(_PORT_MIN, max(given, _PORT_MIN + 1)) for _ in range(99)), 0):
        with socket.socket() as taken, contextlib.suppress(OSError):  # somebody serves there
            taken.bind(("127.0.0.1", port))
            return int(taken.getsockname()[1])
    raise AssertionError("no port is free")


def _run(*command: object) -> None:
    ran = subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
