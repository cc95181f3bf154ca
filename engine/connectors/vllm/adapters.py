"""Which LoRA adapter a request has, by the weights that the workers say they loaded.

vLLM tells the blocks of its own cache apart by an adapter's name and path alone. So one whose
weights have changed under these has no name here until vLLM has forgotten what it cached: some of
that may be of the weights before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .messages import ADAPTERS_MAX, Adapter

CHANGED = "LoRA adapters whose weights changed, or may, under one name and path"


class Adapters:
    """Of one engine."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], Adapter] = {}
        self._mixed: set[tuple[str, str]] = set()

    def of(self, request: Any) -> Adapter | None:
        """The one that a request has, if its weights are known; see `why_not`."""
        found = self._loaded.get(_called(request))
        return None if found is None or self.why_not(request) else found

    def why_not(self, request: Any) -> str:
        """What keeps it from ever being known; nothing where a worker is only to load it."""
        called = _called(request)
        known = self._loaded.get(called)
        nameless = known is not None and not known.weights
        changed = request.lora_request.load_inplace or called in self._mixed or nameless
        return CHANGED if changed else ""

    def heard(self, told: Iterable[Adapter]) -> None:
        """What the workers have loaded last."""
        for one in told:
            called = (one.name, one.path)
            before = self._loaded.get(called)
            if before is None and len(self._loaded) == ADAPTERS_MAX:
                continue
            if before is not None and before != one:
                self._mixed.add(called)
            self._loaded[called] = one

    def forgotten(self) -> None:
        """vLLM has forgotten what it cached."""
        self._mixed.clear()


def _called(request: Any) -> tuple[str, str]:
    return request.lora_request.lora_name, request.lora_request.lora_path
