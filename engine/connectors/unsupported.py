"""What a connector raises for an engine whose KV it cannot keep right."""

from __future__ import annotations


class Unsupported(ValueError):
    """This engine's KV cannot be kept in the pool; the message names what stands in the way."""
