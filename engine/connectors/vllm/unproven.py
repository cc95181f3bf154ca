"""Requests into whose pages another connector has loaded KV, as one beside ours in vLLM's
`MultiConnector` may: whether that is good is known only once a step on it is over.

What such a connector loads within a step may fail within it, and vLLM then computes those tokens
anew. It says so after our workers have stored what the step completes, and until then lets others
of the same prefix have the same pages. A token that vLLM keeps of a request is proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Pages = tuple[list[int], ...]  # vLLM's blocks of a request, by vLLM's group


class Unproven:
    """The requests of which nothing may be stored or judged yet."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}  # that each had when it began
        self._pages: dict[str, set[int]] = {}

    def begins(self, request: Any, pages: Callable[[], Pages], *, loaded: bool) -> None:
        """A step is the first on the pages that a request was given; `loaded`: by another."""
        self.forget(request.request_id)
        if not loaded and not self._pages:
            return
        given = {page for group in pages() for page in group if page}  # 0 is nobody's
        if loaded or any(given & others for others in self._pages.values()):
            self._tokens[request.request_id] = request.num_output_tokens
            self._pages[request.request_id] = given

    def holds(self, request: Any) -> bool:
        """Whether this is one of them; one that has a token by now is no more."""
        had = self._tokens.get(request.request_id)
        if had is not None and request.num_output_tokens > had:
            self.forget(request.request_id)
            return False
        return had is not None

    def forget(self, request: str) -> None:
        self._tokens.pop(request, None)
        self._pages.pop(request, None)
