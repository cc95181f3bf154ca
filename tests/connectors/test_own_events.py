"""Where an engine publishes its KV events, as who is on the same host connects to it."""

from __future__ import annotations

import logging

import pytest

from kvstore.engine.connectors.own_events import connectable, source_of


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


def test_where_events_are_said_again_is_bound_whatever_its_form() -> None:
    told = "an engine", "zmq", "tcp://*:5557", "tcp://127.0.0.1:5558"
    found = source_of(logging.getLogger("test"), *told)
    assert found is not None and found.replay_endpoint == "tcp://127.0.0.1:5558"
