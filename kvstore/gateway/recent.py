"""The last requests of a gateway, for people to look at: what was found, what it took, who ran it.

Nothing of what was asked or said: no text, no token, and of a client no name.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from kvstore.gateway.request import Outcome, Request

KEPT = 100


class Recent:
    """Those that are over."""

    def __init__(self) -> None:
        self._over: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def add(self, request: Request, answer: str, out: Outcome) -> None:
        """`answer` is how it ended, in a word, and `out` what had come of it by then."""
        self._over.appendleft(
            {
                "id": request.id,
                "at": time.time(),
                "answer": answer,
                "prompt_tokens": len(request.prompt),
                "cached_tokens": None if out.untold else out.pool_tokens,
                "expected_tokens": out.expected_tokens,
                "output_tokens": len(out.tokens),
                "ttft_seconds": out.ttft_seconds,
                "expected_seconds": out.expected_seconds,
                "seconds": out.seconds,
                "engines": list(out.engines),
                "miss": out.miss,
                "all_found": _all_found(len(request.prompt), out),
            }
        )

    def newest(self) -> list[dict[str, Any]]:
        """The newest first, as JSON."""
        return list(self._over)


def _all_found(prompt_tokens: int, out: Outcome) -> bool:
    """Whether no more of a prompt could have been: engines compute its last token, and some of them
    all of that one's block."""
    size = out.block_tokens or 1
    wanted = (prompt_tokens - 1) // size * size
    return not out.miss and 0 < out.pool_tokens >= wanted
