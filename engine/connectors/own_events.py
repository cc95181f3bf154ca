"""Where an engine publishes what its own KV cache holds, as its connector, in the same process or
one beside it, connects to it."""

from __future__ import annotations


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
