"""Where an engine publishes what its own KV cache holds, as its connector, in the same process or
one beside it, connects to it."""

from __future__ import annotations

import logging

from kvstore.client.kv_events.subscription import Source


def source_of(
    log: logging.Logger,
    engine: str,
    publisher: str,
    endpoint: str,
    replay: str = "",
    topic: str = "",
    *,
    binds: bool = False,
) -> Source | None:
    """None where nothing can be read there, and the log says why."""
    where = connectable(endpoint, binds)
    if publisher != "zmq" or not where:
        log.warning(
            "Moonpool: conductors are not told what %s's own cache holds: events are published by "
            "%s at %s, and zmq at tcp://*:PORT is wanted",
            *(engine, publisher, endpoint),
        )
        return None
    # This one engines bind whatever it is.
    return Source(where, connectable(replay, binds=True), topic)


def connectable(endpoint: str, binds: bool = False) -> str:
    """An endpoint that the engine binds, also where its form does not say so; else nothing."""
    if endpoint.startswith("ipc://"):
        return endpoint
    if not endpoint.startswith("tcp://") or endpoint.endswith(":0"):
        return ""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if host == "*":
        return f"tcp://127.0.0.1:{port}"
    return endpoint if binds else ""
