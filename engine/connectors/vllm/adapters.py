"""Which LoRA adapter a request has, by the weights that the workers say they loaded.

vLLM computes by an adapter's number, and tells the blocks of its own cache apart by its name and
path alone. So one whose weights have changed under these has no name here until vLLM has forgotten
what it cached: some of that may be of the weights before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .messages import ADAPTERS_MAX, Adapter

CHANGED = "LoRA adapters whose weights changed, or may, under one name and path"


class Adapters:
    """Of one engine."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[int, Adapter] = OrderedDict()  # by number, the last one last
        self._weights: dict[tuple[str, str], str] = {}  # the last of each name and path
        self._mixed: set[tuple[str, str]] = set()
        # By number, under which name and path it was last asked for.
        self._asked: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._changed = False  # what blocks are named by, since it was last asked

    def asked(self, request: Any) -> bool:
        """One comes under an adapter, whatever becomes of it: whether any has no name since. Who
        comes under the number of another is computed by that, or where none is loaded by it yet
        that by this."""
        number, called, mixed = request.lora_request.lora_int_id, _called(request), len(self._mixed)
        loaded, before = self._loaded.get(number), self._asked.get(number, called)
        if loaded is not None and (loaded.name, loaded.path) != called:
            self._mix(called)
        if loaded is None and before != called:
            self._mix(called)
            self._mix(before)
        self._asked[number] = called
        self._asked.move_to_end(number)
        while len(self._asked) > ADAPTERS_MAX:
            self._asked.popitem(last=False)
        return len(self._mixed) > mixed

    def of(self, request: Any) -> Adapter | None:
        """The one that a request has, if its weights are known; see `why_not`."""
        found, called = self._loaded.get(request.lora_request.lora_int_id), _called(request)
        if found is not None and (found.name, found.path) != called:
            self._mix(called)  # it is computed by what its number stands for
        return None if found is None or self.why_not(request) else found

    def renamed(self) -> list[Adapter]:
        """All that are loaded, the last one last, where any is named otherwise since this was last
        asked: without their weights where blocks under one have no name here."""
        if not self._changed:
            return []
        self._changed = False
        return [
            replace(one, weights="") if self._nameless((one.name, one.path)) else one
            for one in self._loaded.values()
        ]

    def why_not(self, request: Any) -> str:
        """What keeps it from ever being known; nothing where a worker is only to load it."""
        in_place = getattr(request.lora_request, "load_inplace", False)
        return CHANGED if in_place or self._nameless(_called(request)) else ""

    def _nameless(self, called: tuple[str, str]) -> bool:
        mixed = called in self._mixed or len(self._mixed) == ADAPTERS_MAX
        return mixed or self._weights.get(called) == ""

    def heard(self, told: Sequence[Adapter]) -> bool:
        """What the workers have loaded last, that first; whether that says anything new."""
        new = False
        for one in reversed(told):
            called = (one.name, one.path)
            was = self._loaded.get(one.number)
            new |= was != one
            if was is not None and (was.name, was.path) != called:
                self._mix((was.name, was.path))  # who waits under that is computed by this
            if (asked := self._asked.get(one.number, called)) != called:
                self._mix(asked)  # also who is over by now
            before = self._weights.get(called)
            if before is None and len(self._weights) == ADAPTERS_MAX:
                self._loaded.pop(one.number, None)
                continue  # whether it changes could not be remembered
            if before is not None and before != one.weights:
                self._mix(called)
            self._weights[called] = one.weights
            self._loaded[one.number] = one
            self._loaded.move_to_end(one.number)
        while len(self._loaded) > ADAPTERS_MAX:
            self._loaded.popitem(last=False)
        self._changed |= new
        return new

    def stale(self, adapter: Adapter) -> None:
        """Its files have changed since it was loaded: it may be another from the next load on."""
        self._mix((adapter.name, adapter.path))

    def forgotten(self) -> None:
        """vLLM has forgotten what it cached."""
        self._mixed.clear()
        self._changed = True

    def _mix(self, called: tuple[str, str]) -> None:
        """vLLM may have KV of several weights under these. Where that is so of too many to remember
        it is of all."""
        if len(self._mixed) < ADAPTERS_MAX and called not in self._mixed:
            self._mixed.add(called)
            self._changed = True


def _called(request: Any) -> tuple[str, str]:
    return request.lora_request.lora_name, request.lora_request.lora_path
