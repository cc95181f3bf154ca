"""Where an engine publishes its KV events, as who is on the same host connects to it."""

from __future__ import annotations

import pytest

from kvstore.engine.connectors.own_events import connectable


@pytest.mark.parametrize(
    ("endpoint", "binds", "found"),
    [
        ("tcp://*:5557", False, "tcp://127.0.0.1:5557"),
        ("ipc:///tmp/events", False, "ipc:///tmp/events"),
        ("tcp://127.0.0.1:5557", True, "tcp://127.0.0.1:5557"),
        ("tcp://127.0.0.1:5557", False, ""),
        ("tcp://*:0", False, ""),
        ("inproc://cache", False, ""),
        ("", False, ""),
    ],
)
def test_what_the_engine_binds_can_be_connected_to_and_nothing_else(
    endpoint: str, binds: bool, found: str
) -> None:
    assert connectable(endpoint, binds) == found
