"""Who is calling: the one place where a call gets its tenant.

Without identity a server is open only to its own host, so it listens on loopback alone and every
caller is the tenant `default`. The request's body never says whose it is.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from kvstore.errors import ConfigError

DEFAULT_TENANT = "default"


def tenant_of(context: Any) -> str:
    """The tenant of a call."""
    return DEFAULT_TENANT


def listen_address(address: str) -> str:
    """`address` if callers without identity may be served there, else a `ConfigError`."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"node.listen = {address!r}: write HOST:PORT, like 127.0.0.1:7410")
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ConfigError(
            f"node.listen = {address!r}: callers have no identity yet, so only this host may be "
            "served; listen on 127.0.0.1"
        )
    return address
