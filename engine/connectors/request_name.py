"""A request's name as conductors take one, of an engine whose callers may choose any."""

from __future__ import annotations

from blake3 import blake3

ID_BYTES_MAX = 256


def name_of(request: str) -> str:
    raw = request.encode(errors="replace")
    if request.isprintable() and 0 < len(raw) <= ID_BYTES_MAX:
        return request
    return blake3(raw).hexdigest()
