"""Hosts made of network namespaces behave as machines on a network do, cut cables included.

What runs in a host here is a few lines of Python with sockets, told to say in a word what it saw.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvstore.limits import MiB
from tests import hosts
from tests.hosts import Host, Network
from tests.nodes import eventually
from tests.tree import ROOT

PORT = 7000
ECHO = f"""
    import socket
    server = socket.create_server(("0.0.0.0", {PORT}))
    print("listening", flush=True)
    while True:
        peer, _ = server.accept()
        with peer:
            while got := peer.recv(1 << 20):
                peer.sendall(got)
"""
SINK = ECHO.replace("peer.sendall(got)", "pass")
CALL = f"""
    import socket, sys
    address, seconds = sys.argv[1], float(sys.argv[2])
    try:
        with socket.create_connection((address, {PORT}), seconds) as peer:
            peer.sendall(b"hello")
            print(peer.recv(5).decode())
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture
def pair() -> Iterator[Network]:
    with hosts.network(2) as made:
        yield made


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


@contextmanager
def serving(host: Host, code: str = ECHO) -> Iterator[subprocess.Popen[str]]:
    server = host.start(python(code), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stdout.readline() == "listening\n"
        yield server
    finally:
        server.kill()
        server.communicate()


def call(sender: Host, receiver: Host, seconds: float = 10.0) -> str:
    """What a caller in `sender` gets from the echo in `receiver`: its word, or an error's name."""
    return sender.run(python(CALL, receiver.address, str(seconds))).stdout.strip()


def test_two_hosts_talk(pair: Network) -> None:
    first, second = pair.hosts
    with serving(second):
        assert call(first, second) == "hello"
        assert call(second, second) == "hello"


def test_the_test_itself_reaches_a_host(pair: Network) -> None:
    with (
        serving(pair.hosts[0]),
        socket.create_connection((pair.hosts[0].address, PORT), 10.0) as peer,
    ):
        assert peer.getsockname()[0] == pair.address
        peer.sendall(b"hello")
        assert peer.recv(5) == b"hello"


def test_a_door_leads_to_what_listens_on_a_hosts_own_loopback(pair: Network) -> None:
    listens = ECHO.replace("0.0.0.0", "127.0.0.1")
    with serving(pair.hosts[0], listens), pair.hosts[0].door(f"127.0.0.1:{PORT}") as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 10.0) as peer:
            peer.sendall(b"hello")
            assert peer.recv(5) == b"hello"
        with pytest.raises(ConnectionRefusedError):  # our own loopback is another
            socket.create_connection(("127.0.0.1", PORT), 10.0)


def test_each_host_has_ports_of_its_own(pair: Network) -> None:
    first, second = pair.hosts
    with serving(first), serving(second):
        assert call(first, second) == "hello"
    assert call(first, second) == "ConnectionRefusedError"  # the host is up, nobody listens


def test_a_cut_is_silent_and_heals(pair: Network) -> None:
    first, second = pair.hosts
    with serving(second), serving(first):
        assert call(first, second) == "hello"
        pair.cut(first, second)
        assert call(first, second, 0.5) == "TimeoutError"
        assert call(second, first, 0.5) == "TimeoutError"
        pair.heal(first, second)
        assert call(first, second) == "hello"


def test_an_open_connection_survives_a_cut_and_hears_no_reset_in_it(pair: Network) -> None:
    first, second = pair.hosts
    code = """
        import socket, sys
        peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30.0)
        print("connected", flush=True)
        sys.stdin.readline()
        peer.sendall(b"hello")
        peer.settimeout(0.7)
        try:
            print(peer.recv(5), flush=True)
        except TimeoutError:
            print("silence", flush=True)
        peer.settimeout(30.0)
        print(peer.recv(5).decode(), flush=True)
    """
    with serving(second):
        caller = first.start(
            python(code, second.address, str(PORT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert caller.stdin is not None and caller.stdout is not None
            assert caller.stdout.readline() == "connected\n"
            pair.cut(first, second)
            caller.stdin.write("go\n")
            caller.stdin.flush()
            assert caller.stdout.readline() == "silence\n"
            pair.heal(first, second)
            assert caller.stdout.readline() == "hello\n"
        finally:
            caller.kill()
            caller.communicate()


def test_a_cut_one_way_leaves_the_other_way_open(pair: Network) -> None:
    first, second = pair.hosts
    listen = """
        import socket, sys
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.bind(("0.0.0.0", 7001))
        own.settimeout(float(sys.argv[1]))
        print("listening", flush=True)
        try:
            print(own.recv(100).decode())
        except TimeoutError:
            print("silence")
    """
    send = """
        import socket, sys
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"word", (sys.argv[1], 7001))
    """

    def heard(sender: Host, receiver: Host, seconds: float) -> str:
        ear = receiver.start(python(listen, str(seconds)), stdout=subprocess.PIPE, text=True)
        try:
            assert ear.stdout is not None and ear.stdout.readline() == "listening\n"
            sender.run(python(send, receiver.address))
            return ear.communicate(timeout=60.0)[0].strip()
        finally:
            ear.kill()
            ear.wait()

    assert heard(first, second, 20.0) == "word"
    pair.lose(first, second)
    assert heard(first, second, 0.5) == "silence"
    assert heard(second, first, 20.0) == "word"


def test_a_cut_between_two_leaves_the_third_alone() -> None:
    with hosts.network(3) as made:
        first, second, third = made.hosts
        with serving(second), serving(third):
            made.cut(first, second)
            assert call(first, second, 0.5) == "TimeoutError"
            assert call(first, third) == "hello"
            assert call(third, second) == "hello"


@pytest.mark.parametrize("way", ["out of the host", "into the host"])
def test_a_limited_link_takes_its_time_in_each_direction(pair: Network, way: str) -> None:
    limited, free = pair.hosts
    sender, receiver = (limited, free) if way == "out of the host" else (free, limited)
    code = f"""
        import socket, sys, time
        peer = socket.create_connection((sys.argv[1], {PORT}), 60.0)
        left, started = {4 * MiB}, time.monotonic()
        peer.sendall(bytes(left))
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b"", "the sink says nothing: it closes when it has everything"
        print(time.monotonic() - started)
    """

    def seconds() -> float:
        return float(sender.run(python(code, receiver.address), 120.0).stdout)

    with serving(receiver, SINK):
        pair.limit(limited, 2 * MiB)
        slow = seconds()
        assert slow > 1.5  # 4 MiB at 2 MiB/s, less what the burst lets through at once
        pair.unlimit(limited)
        # One of them, on a busy machine: with the limit none would be.
        assert min(seconds() for _ in range(3)) < slow / 2


def test_a_host_alone_has_loopback_and_no_way_out() -> None:
    with hosts.alone() as host:
        with serving(host):
            assert call(host, host) == "hello"
            with pytest.raises(ConnectionRefusedError):  # our own loopback is another
                socket.create_connection((host.address, PORT), 10.0)
        there = host.run(["ip", "-brief", "link"]).stdout.split()
        assert there[0] == "lo" and len(host.run(["ip", "-o", "link"]).stdout.splitlines()) == 1
        assert host.run(["ip", "route"]).stdout == ""


def test_nothing_is_left_of_hosts_even_if_something_still_runs_in_them() -> None:
    with hosts.network(2) as made:
        one = made.hosts[0]
        left = one.start(["sleep", "600"])
        ours = os.stat(f"/run/netns/{one.name}").st_ino
        eventually(lambda: os.stat(f"/proc/{left.pid}/ns/net").st_ino == ours)
        assert len(hosts.left_over(os.getpid())) == 3
    assert left.wait(10.0) == -signal.SIGKILL
    assert hosts.left_over(os.getpid()) == []
    eventually(lambda: made.address not in subprocess.check_output(["ip", "addr"], text=True))


def test_a_failing_test_leaves_no_hosts_either() -> None:
    with pytest.raises(ZeroDivisionError), hosts.network(1):
        _ = 1 / 0
    assert hosts.left_over(os.getpid()) == []


def test_the_next_run_removes_what_a_killed_one_left() -> None:
    code = """
        import sys
        from tests import hosts
        with hosts.network(1) as made:
            print(made.hosts[0].name, flush=True)
            sys.stdin.readline()
    """
    killed = subprocess.Popen(
        python(code), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    name = killed.stdout.readline().strip()
    assert name
    with hosts.alone():
        assert len(hosts.left_over(killed.pid)) == 2, "a living run's hosts are its own"
    killed.kill()
    killed.communicate()
    assert len(hosts.left_over(killed.pid)) == 2
    with hosts.alone():
        assert hosts.left_over(killed.pid) == []


def test_without_root_tests_that_ask_for_hosts_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="take root"), hosts.network(1):
        pass


def test_networks_of_one_process_do_not_overlap() -> None:
    with hosts.network(1) as one, hosts.network(1) as other:
        assert one.hosts[0].address != other.hosts[0].address
        for made in (one, other):
            with serving(made.hosts[0]), socket.create_connection((made.hosts[0].address, PORT)):
                pass
