"""Sockets that listen, whatever kind of address their host is: all that are not gRPC's own."""

from __future__ import annotations

import errno
import socket

from kvstore.address import named


def listening(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """At HOST as in HOST:PORT, where brackets are right. Raises `OSError`.

    At [::] it is reached by IPv4 too, as what gRPC serves there is; a name that stands for
    addresses of both kinds is taken for that of IPv4.
    """
    plain = host.strip("[]")
    with named():
        kinds = {found[0] for found in socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM)}
    return socket.create_server(
        (plain, port),
        family=socket.AF_INET if socket.AF_INET in kinds else socket.AF_INET6,
        backlog=backlog,
        dualstack_ipv6=plain == "::" and socket.has_dualstack_ipv6(),
    )


def in_the_way(address: str) -> str:
    """Why nothing of ours can listen at HOST:PORT now, and what to do; empty where it can. gRPC
    itself tells no reason from another, and logs them in its own way."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        return "write HOST:PORT, like 127.0.0.1:9401"
    try:
        listening(host, int(port)).close()
    except socket.gaierror:
        return f"{host.strip('[]')} is no name or address of this host"
    except OSError as error:
        number = error.errno or 0
        if number == errno.EACCES and int(port) < _ROOTS_PORTS:
            return "permission denied: ports below 1024 are for root, take one above"
        return _REASONS.get(number, f"{error.strerror or error}".lower())
    return ""


_ROOTS_PORTS = 1024
_REASONS = {
    errno.EADDRINUSE: "another process does: stop that one (`ss -ltnp`), or take another port",
    errno.EADDRNOTAVAIL: "this host has no such address: name one of `ip address`, or 0.0.0.0 with "
    "--advertise HOST",
}
