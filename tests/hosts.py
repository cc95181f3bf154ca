"""Several hosts on one machine: network namespaces on one Ethernet, and one with `lo` alone.

Each host has a network of its own (its own 127.0.0.1, its own ports) and an address on a bridge
that all share; files and processes are the machine's. The test process stands on that bridge too,
so it can call what runs in a host. A link that is cut is cut as a broken switch cuts it: what is
sent into it is lost, in one direction or both, and nobody is told, by no reset and by no error.

Names carry the process that made them. What a test run leaves behind when it is killed, the next
run that makes hosts removes. It takes root; without it tests that ask for hosts are skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.faults.proxy import Proxy

_PREFIX = "moonpool"
_COMMAND_SECONDS = 20.0
_NETWORK = 0x40000000  # CLONE_NEWNET
_NOBODY = "02:00:00:00:00:00"  # frames to it reach every port of the bridge and are nobody's
_BURST_BYTES = 128 << 10  # more than the largest packet a veth carries unsplit, 64 KiB
_QUEUE_BYTES = 4 << 20  # a limited link makes its senders wait; it does not lose what they send
_NETWORKS = 1 << 14  # of 254 hosts: 10.64.0.0 to 10.127.255.0
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """One of them. `address` is where the others, and the test, reach it."""

    name: str
    address: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """What to start instead of `arguments` so that they run in this host, as one process."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *arguments]

    def start(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """A process of this host, as `subprocess.Popen` makes it; whoever starts it ends it."""
        return subprocess.Popen(self.command(arguments), **options)

    @contextmanager
    def inside(self) -> Iterator[Executor]:
        """One thread in this host: what it does and starts is done and runs there. What heeds the
        end of its parent ends with the thread."""
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(self.name,)) as thread:
            yield thread

    @contextmanager
    def door(self, address: str) -> Iterator[str]:
        """Where the test reaches what listens at an address of this host's own, its `lo`."""
        with Proxy(address, enter=lambda: _enter(self.name)) as way:
            yield way.address

    def run(
        self, arguments: Sequence[str], seconds: float = _COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this host to its end, which is success, and have its output as text."""
        given = self.command(arguments)
        return subprocess.run(given, capture_output=True, text=True, check=True, timeout=seconds)


class Network:
    """Hosts that reach each other, until a link is cut or limited. Made by `network`."""

    def __init__(self, hosts: Sequence[Host], hub: str, address: str) -> None:
        self.hosts = tuple(hosts)
        self.address = address  # of the test process
        self._hub = hub

    def lose(self, sender: Host, receiver: Host) -> None:
        """From now on nothing that `sender` sends reaches `receiver`, and neither is told."""
        self._neighbour(sender, "replace", receiver, "lladdr", _NOBODY, "nud", "permanent")

    def cut(self, one: Host, other: Host) -> None:
        """Lose what either sends to the other."""
        self.lose(one, other)
        self.lose(other, one)

    def deliver(self, sender: Host, receiver: Host) -> None:
        """What `sender` sends reaches `receiver` again."""
        self._neighbour(sender, "replace", receiver, "lladdr", _mac(receiver), "nud", "stale")

    def heal(self, one: Host, other: Host) -> None:
        """Both reach each other again."""
        self.deliver(one, other)
        self.deliver(other, one)

    def limit(self, host: Host, bytes_per_second: int) -> None:
        """The host's link carries no more than this in each direction, from now on."""
        port = _port(self.hosts.index(host))
        for namespace, device in ((host.name, "eth0"), (self._hub, port)):
            _run(
                *("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"),
                *("rate", f"{bytes_per_second}bps", "burst", str(_BURST_BYTES)),
                *("limit", str(_QUEUE_BYTES)),
            )

    def unlimit(self, host: Host) -> None:
        """The link of a limited host is as fast as it was."""
        port = _port(self.hosts.index(host))
        for namespace, device in ((host.name, "eth0"), (self._hub, port)):
            _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    def _neighbour(self, host: Host, what: str, other: Host, *how: str) -> None:
        _run("ip", "-n", host.name, "neigh", what, other.address, *how, "dev", "eth0")


@contextmanager
def network(count: int) -> Iterator[Network]:
    """`count` hosts on one Ethernet; whatever still runs in them at the end is killed."""
    with _names() as name:
        hub, first = name("hub"), _free_range()
        hosts = [Host(name(str(i)), f"{first}.{i + 1}") for i in range(count)]
        own, address = f"mp{os.getpid() % 10**6}-{next(_serial)}", f"{first}.254"
        for namespace in (hub, *(host.name for host in hosts)):
            _run("ip", "netns", "add", namespace)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", hub, "link", "add", "hub", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "hub", "up")
        for i, host in enumerate(hosts):
            ends = ("eth0", "address", _mac(host), "netns", host.name)
            _plug(hub, _port(i), ends)
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _run("ip", "-n", host.name, "link", "set", "eth0", "up")
        _plug(hub, "test", (own,))  # goes with the hub
        _run("ip", "addr", "add", f"{address}/24", "dev", own)
        _run("ip", "link", "set", own, "up")
        yield Network(hosts, hub, address)


@contextmanager
def alone() -> Iterator[Host]:
    """A host that has `lo` and nothing else: what binds every address is reached by nobody else."""
    with _names() as name:
        host = Host(name("lo"), "127.0.0.1")
        _run("ip", "netns", "add", host.name)
        _run("ip", "-n", host.name, "link", "set", "lo", "up")
        yield host


def left_over(pid: int) -> list[str]:
    """Namespaces that process made and has not removed."""
    return [name for name in _all_names() if name.startswith(f"{_PREFIX}-{pid}-")]


@contextmanager
def _names() -> Iterator[Any]:
    """A giver of names; the namespaces so named are gone at the end."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    _sweep()
    start = f"{_PREFIX}-{os.getpid()}-{next(_serial)}-"
    try:
        yield start.__add__
    finally:
        for name in _all_names():
            if name.startswith(start):
                _remove(name)


def _sweep() -> None:
    """Remove what test runs left that are gone."""
    for name in _all_names():
        prefix, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdecimal() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(subprocess.CalledProcessError):  # another run was quicker
                _remove(name)


def _enter(name: str) -> None:
    """This thread, and no other of the process, is in the namespace from now on."""
    with open(f"/run/netns/{name}") as namespace:
        failed = ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NETWORK)
    assert not failed, os.strerror(ctypes.get_errno())


def _remove(name: str) -> None:
    """The namespace lives as long as a process in it, so these go first."""
    for pid in map(int, _run("ip", "netns", "pids", name).split()):
        with contextlib.suppress(ProcessLookupError):
            _end(pid)
    _run("ip", "netns", "del", name)


def _end(pid: int) -> None:
    """Kill a process and wait until it is dead; its parent may still ask how it ended."""
    watched = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([watched], [], [], _COMMAND_SECONDS)
    finally:
        os.close(watched)


def _all_names() -> list[str]:
    try:
        return sorted(name for name in os.listdir("/run/netns") if name.startswith(f"{_PREFIX}-"))
    except FileNotFoundError:  # no namespace was ever made here
        return []


def _free_range() -> str:
    """The first three numbers of 256 addresses that this machine has no route to."""
    routes = json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all"))
    taken = {str(route["dst"]).rpartition(".")[0] for route in routes}
    number = 1_009 * os.getpid()  # runs side by side have neighbouring ones, and look at once
    for step in range(_NETWORKS):
        place = (number + step) % _NETWORKS
        if (found := f"10.{64 + place // 256}.{place % 256}") not in taken:
            return found
    raise AssertionError("every range of addresses is in use")


def _plug(hub: str, port: str, end: tuple[str, ...]) -> None:
    """A cable from a port of the hub to a device somewhere else."""
    _run("ip", "link", "add", "name", *end, "type", "veth", "peer", "name", port, "netns", hub)
    _run("ip", "-n", hub, "link", "set", port, "master", "hub", "up")


def _port(index: int) -> str:
    return f"port{index}"


def _mac(host: Host) -> str:
    return f"02:00:00:00:01:{int(host.address.rpartition('.')[2]):02x}"


def _run(*arguments: str) -> str:
    try:
        return subprocess.run(
            arguments, capture_output=True, text=True, check=True, timeout=_COMMAND_SECONDS
        ).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(f"{' '.join(arguments)}: {error.stderr.strip()}")
        raise
