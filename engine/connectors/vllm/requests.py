"""The requests that are in vLLM: those in which the pool has a part, and those that go on without.

In one that goes on without it has its part later where what decides its KV is known later: when the
workers say what they keep, or by which weights of an adapter they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvstore.client import Client

from .contents import Contents
from .keys import Nameless
from .media import Media
from .messages import Adapter
from .tracked import LeftOut, Tracked


class Requests:
    """Of one engine."""

    def __init__(self, align: int, media: Media, tell: Callable[[str], None]) -> None:
        self._align, self._tell = align, tell
        self._contents = Contents(media)
        self._clients: tuple[Client, ...] = ()  # none before the workers have said what they keep
        self._hybrid = False
        self.tracked: dict[str, Tracked] = {}
        self.others: dict[str, LeftOut] = {}  # that go on without the pool

    def begin(self, clients: tuple[Client, ...], hybrid: bool) -> None:
        """The workers have said what they keep; `hybrid`: of some layers a window alone."""
        self._clients, self._hybrid = clients, hybrid

    def arrived(self, request: Any) -> Tracked | None:
        """Of those in which the pool has a part, how it is followed."""
        tracked = self._tracked(request)
        if tracked is None:
            self.others[request.request_id] = LeftOut(request)
        else:
            self.tracked[request.request_id] = tracked
        return tracked

    def known_now(self) -> list[Tracked]:
        """Those of the others in which the pool has a part by now."""
        found = []
        for name, one in list(self.others.items()):
            tracked = None if one.apart else self._tracked(one.request)
            if tracked is not None:
                tracked.end, tracked.ran = one.end, one.ran
                del self.others[name]
                self.tracked[name] = tracked
                found.append(tracked)
        return found

    def adapters_loaded(self, told: tuple[Adapter, ...]) -> list[Tracked]:
        """The workers say by which weights they compute. Those are left out, and given back, whose
        names are of others."""
        adapters, stale = self._contents.adapters, list[Tracked]()
        adapters.heard(told)
        for one in self.tracked.values():
            if one.adapter is not None and adapters.of(one.request) != one.adapter:
                stale.append(one)
        return self._left_out(stale)

    def over(self, request: str) -> Tracked | None:
        self.others.pop(request, None)
        return self.tracked.pop(request, None)

    def forgotten(self) -> list[Tracked]:
        """vLLM forgets what it cached. Those that are here may have KV of before and of after: they
        go on without the pool, whatever is known later."""
        left = self._left_out(list(self.tracked.values()))
        for one in self.others.values():
            one.apart = True
        self._contents.adapters.forgotten()
        return left

    def keep_apart(self) -> None:
        """What is computed from now on has names that only this engine knows."""
        self._contents.keep_apart()

    def _left_out(self, some: list[Tracked]) -> list[Tracked]:
        for one in some:
            del self.tracked[one.id]
            self.others[one.id] = LeftOut(one.request, one.end, one.ran, apart=True)
        return some

    def _tracked(self, request: Any) -> Tracked | None:
        if not self._clients:
            return None
        try:
            content = self._contents.of(request, self._clients[0].space.layout.block_tokens)
        except Nameless as nameless:
            if why := str(nameless):
                self._tell(f"requests with {why} are not kept in the pool")
            return None
        tracked = Tracked(request, self._clients, self._align, content)
        if tracked.misnamed:
            self._tell("a hand-off is left out whose name no node takes: 1,024 bytes, no \\0")
        if tracked.follow and self._hybrid:
            # Of windows only full blocks are stored: it would wait for what does not come.
            self._tell("a hybrid model's prefills are not followed, what is stored is loaded")
            tracked.follow = ""
        return tracked
