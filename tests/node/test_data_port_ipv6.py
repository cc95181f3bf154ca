"""The data port on addresses of IPv6: blocks go over them as over the others."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kvstore.client import Client
from kvstore.node.data_port import DataPort
from kvstore.node.sessions import Sessions
from kvstore.telemetry import NODE, Telemetry
from tests.client.kv import Cache
from tests.ipv6 import both, ipv6
from tests.nodes import running
from tests.transfer.tcp_rig import DENSE, SPEC, TOKENS, stored

SECONDS = 20.0


@ipv6
def test_what_was_put_over_ipv6_is_got_over_it() -> None:
    with (
        running(dram="64MiB", slab="4MiB", listen="[::1]:0") as node,
        Client.at(node.address, SPEC, deadline_seconds=SECONDS, transport="tcp") as client,
    ):
        assert node.address.startswith("[::1]:")
        chain, truth = stored(client)
        into = Cache(SPEC, TOKENS, **DENSE)
        assert client.get(chain, into.memory(client)).blocks == len(chain)
        assert into.holds(truth)


def listening(host: str) -> DataPort:
    lacking: Any = None
    return DataPort(host, 0, *[lacking] * 3, Sessions(), Telemetry(NODE))


@ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_it_listens_there_with_brackets_or_without(host: str) -> None:
    port = listening(host)
    socket.create_connection(("::1", port.port), SECONDS).close()
    port.close()


@both
def test_on_all_addresses_it_is_reached_by_ipv4_too_as_the_nodes_calls_are() -> None:
    port = listening("[::]")
    for host in ("::1", "127.0.0.1"):
        socket.create_connection((host, port.port), SECONDS).close()
    port.close()
