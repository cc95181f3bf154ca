"""Numbers that callers give, looked at before a node is asked: no message holds just any."""

from __future__ import annotations

from kvstore.errors import Invalid

UINT64_MAX = 2**64 - 1


def check_bounds(name: str, given: float, least: float, most: float) -> None:
    if not least <= given <= most:
        raise Invalid(f"{name} {given}: {least} to {most}")
