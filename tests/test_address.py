"""Addresses of engines: what is one, and what it says."""

from __future__ import annotations

import socket

import pytest

from kvstore.address import check_engine, host_and_port, named, speaks_http, speaks_sglang
from kvstore.errors import Invalid


@pytest.mark.parametrize(
    ("address", "http", "host", "port"),
    [
        ("127.0.0.1:7500", False, "127.0.0.1", 7500),
        ("engine-3.example:1", False, "engine-3.example", 1),
        ("[::1]:7500", False, "::1", 7500),
        ("http://127.0.0.1:8000", True, "127.0.0.1", 8000),
        ("http://[::1]:65535", True, "::1", 65_535),
        ("sglang://127.0.0.1:30000", True, "127.0.0.1", 30_000),
    ],
)
def test_an_address_says_where_and_how(address: str, http: bool, host: str, port: int) -> None:
    check_engine("engine.address", address)
    assert speaks_http(address) is http and host_and_port(address) == (host, port)
    assert speaks_sglang(address) is address.startswith("sglang")


@pytest.mark.parametrize(
    "address",
    [
        *("", ":1", "host", "host:", "host:0", "host:65536", "host:x", "http://", "http://host"),
        *("https://host:1", "http://host:1/v1", "http://a@host:1", "ho st:1", "a\nb:1", "host:-1"),
        *("http://http://host:1", "ftp://host:1", "host?x:1"),
        *("sglang://http://host:1", "http://sglang://host:1", "sglang://host"),
    ],
)
def test_what_is_none_is_refused_by_what_would_be_right(address: str) -> None:
    with pytest.raises(
        Invalid, match=r"engine\.address = .*write HOST:PORT.*http://HOST:PORT.*sglang://HOST:PORT"
    ):
        check_engine("engine.address", address)


@pytest.mark.parametrize("host", ["10.0.0..1", ".", "x" * 64, "\udc80"])
def test_a_name_that_no_resolver_can_be_asked_for_is_one_that_is_not_known(host: str) -> None:
    with pytest.raises(socket.gaierror, match="no host can have such a name"), named():
        socket.create_connection((host, 1), 1.0)
