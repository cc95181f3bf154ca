"""What figures of few requests are worth, for whoever would take them for more."""

from __future__ import annotations

FEW = 100  # requests: of fewer, the hundredth is the longest, more or less


def caution(requests: int) -> str:
    """A sentence; empty where there are enough for what is said of them."""
    if requests >= FEW:
        return ""
    of = "1 request" if requests == 1 else f"{requests} requests"
    return f"These are figures of {of}: what is told at p99 is about the longest of them."
