"""Sockets that listen, whatever kind of address their host is: all that are not gRPC's own."""

from __future__ import annotations

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
