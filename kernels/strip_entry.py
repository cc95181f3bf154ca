"""What a strip table says of a hash. By itself: whoever wants no more compiles no loops over
strips."""

# mypy: allow-untyped-decorators
from __future__ import annotations

from typing import Any

from numba import njit

from .inner import BORROWED
from .xxh3 import U


@njit(**BORROWED)
def entry_of(strip_hash: Any) -> Any:
    """Zero is kept for a strip that is not written."""
    return strip_hash if strip_hash != U(0) else U(1)
