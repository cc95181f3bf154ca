"""Where an engine is sent requests, and how: its address says both, and nothing is guessed. And
where a node or a conductor is called, which speak gRPC alone.

HOST:PORT is an engine of ours, that speaks gRPC; http://HOST:PORT is one that speaks OpenAI's API,
as vLLM's server does; and sglang://HOST:PORT is one that speaks SGLang's own, over HTTP too.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.errors import Invalid

HTTP, SGLANG = "http://", "sglang://"
_PORT_MAX, _DIGITS_MAX = 65_535, 5


def speaks_http(address: str) -> bool:
    return address.startswith((HTTP, SGLANG))


def speaks_sglang(address: str) -> bool:
    return address.startswith(SGLANG)


def host_and_port(address: str) -> tuple[str, int]:
    """Of an address that `check_engine` takes."""
    host, _, port = _bare(address).rpartition(":")
    return host.strip("[]"), int(port)


def check_engine(name: str, address: str) -> None:
    """Raises `Invalid` unless requests can be sent there."""
    if not is_host_and_port(_bare(address)):
        raise Invalid(
            f"{name} = {address!r}: write HOST:PORT, like 127.0.0.1:7500, for a server of OpenAI's "
            "API http://HOST:PORT, like http://127.0.0.1:8000, or for SGLang's sglang://HOST:PORT"
        )


def check_server(name: str, address: str) -> None:
    """Raises `Invalid` unless a node or a conductor can be called there."""
    if not is_host_and_port(address):
        raise Invalid(f"{name} = {address!r}: write HOST:PORT, like 127.0.0.1:7410")


@contextmanager
def named() -> Iterator[None]:
    """Where a host is looked up by its name: one that no resolver can even be asked for, as "a..b"
    is not, is one that is not known, and no error of another kind."""
    try:
        yield
    except UnicodeError as error:
        said = f"no host can have such a name ({error})"
        raise socket.gaierror(socket.EAI_NONAME, said) from None


def _bare(address: str) -> str:
    kind = SGLANG if speaks_sglang(address) else HTTP
    return address.removeprefix(kind)


def is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    plain = host.isprintable() and not set(host) & set("/@?# ")
    digits = port.isascii() and port.isdecimal() and len(port) <= _DIGITS_MAX
    return bool(host) and plain and digits and 0 < int(port) <= _PORT_MAX
