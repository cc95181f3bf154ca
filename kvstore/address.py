"""Where an engine is sent requests, and how: its address says both, and nothing is guessed.

HOST:PORT is an engine of ours, that speaks gRPC; http://HOST:PORT is one that speaks OpenAI's API,
as vLLM's server does.
"""

from __future__ import annotations

from kvstore.errors import Invalid

HTTP = "http://"
_PORT_MAX = 65_535


def speaks_http(address: str) -> bool:
    return address.startswith(HTTP)


def host_and_port(address: str) -> tuple[str, int]:
    """Of an address that `check_engine` takes."""
    host, _, port = address.removeprefix(HTTP).rpartition(":")
    return host.strip("[]"), int(port)


def check_engine(name: str, address: str) -> None:
    """Raises `Invalid` unless requests can be sent there."""
    host, _, port = address.removeprefix(HTTP).rpartition(":")
    plain = host.isprintable() and not set(host) & set("/@?# ")
    if not host or not plain or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        raise Invalid(
            f"{name} = {address!r}: write HOST:PORT, like 127.0.0.1:7500, or for a server of "
            "OpenAI's API http://HOST:PORT, like http://127.0.0.1:8000"
        )
