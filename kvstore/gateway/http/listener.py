"""Where the gateway listens: loopback alone, since it speaks HTTP without TLS."""

from __future__ import annotations

import errno
import socket

from kvstore.errors import ConfigError
from kvstore.rpc.identity import on_loopback
from kvstore.rpc.listening import listening

_BACKLOG = 1024


def listening_at(address: str, option: str) -> socket.socket:
    """A socket there, at HOST:PORT. Raises `ConfigError`, which names the option, where none can
    be had."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{option} = {address!r}: write HOST:PORT, like 127.0.0.1:8000")
    if not on_loopback(host):
        raise ConfigError(
            f"{option} = {address!r}: the gateway speaks HTTP without TLS, and serves loopback "
            "alone. Listen on 127.0.0.1, and put a proxy with TLS before it"
        )
    try:
        return listening(host, int(port), backlog=_BACKLOG)
    except OSError as error:
        why = f"{error.strerror}"
        if error.errno == errno.EADDRINUSE:
            why = "another process listens there; name another port, or 0 for any that is free"
        raise ConfigError(f"{option} = {address!r}: {why}") from None


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
