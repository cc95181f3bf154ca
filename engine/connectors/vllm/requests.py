"""The requests that are in vLLM: those in which the pool has a part, and those that go on without.

In one that goes on without it has its part later where what decides its KV is known later: when the
workers say what they keep, or by which weights of an adapter they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvstore.client import Client

from .contents import Contents
from .keys import Nameless, hand_off_of
from .messages import Adapter, Ready
from .tracked import LeftOut, Tracked


class Requests:
    """Of one engine."""

    def __init__(
        self,
        align: int,
        contents: Contents,
        tell: Callable[[str], None],
        drop: Callable[[str], None],
    ) -> None:
        """`drop`: forget what was looked up for one of them, which is to go on without it."""
        self._align, self._tell, self._drop = align, tell, drop
        self._contents = contents
        self._clients: tuple[Client, ...] = ()  # none before the workers have said what they keep
        self._hybrid = False
        self.tracked: dict[str, Tracked] = {}
        self.others: dict[str, LeftOut] = {}  # that go on without the pool
        self._handed: list[str] = []  # hand-offs of which nothing more comes

    def begin(self, clients: tuple[Client, ...], ready: Ready) -> None:
        """The workers have said what they keep."""
        self._clients, self._hybrid = clients, any(ready.windows)

    def arrived(self, request: Any) -> Tracked | None:
        """Of those in which the pool has a part, how it is followed."""
        self._shows(request)
        if request.lora_request is not None and self._contents.adapters.asked(request):
            self._leave_out_misnamed()
        tracked = self._tracked(request)
        if tracked is None:
            self.others[request.request_id] = LeftOut(request)
        else:
            self.tracked[request.request_id] = tracked
        return tracked

    def goes_on(self, request: Any) -> None:
        """It is scheduled: one that is streamed may show more than when it arrived."""
        if request.resumable:
            self._shows(request)

    def _shows(self, request: Any) -> None:
        """Whoever has an image has it encoded under its name, also without the pool."""
        if two := self._contents.media.seen(request.mm_features):
            self._leave_out([one for one in self.tracked.values() if two & _names(one.request)])

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

    def adapters_loaded(self, told: tuple[Adapter, ...]) -> bool:
        """The workers say by which weights they compute: those are left out whose names are of
        others. Whether that says anything new, as of others that are here."""
        if not self._contents.adapters.heard(told):
            return False
        self._leave_out_misnamed()
        return True

    def renamed(self) -> list[Adapter]:
        """Adapters as conductors are to know them, where that has changed since it was asked."""
        return self._contents.adapters.renamed()

    def stale(self, adapter: Adapter) -> None:
        """The files of one are others than it was loaded from: nothing of it is loaded or stored
        until vLLM has forgotten what it cached."""
        self._contents.adapters.stale(adapter)
        self._leave_out_misnamed()

    def over(self, request: str) -> Tracked | None:
        other, tracked = self.others.pop(request, None), self.tracked.pop(request, None)
        for one in (other, tracked):
            if one is not None:
                self._ends_hand_off(one.request)
        return tracked

    def handed(self) -> list[str]:
        """Hand-offs that are over since this was last asked: who follows one is to wait no more.
        One that was left out is among them again as it ends."""
        handed, self._handed = self._handed, []
        return handed

    def forgotten(self) -> None:
        """vLLM forgets what it cached. Those that are here may have KV of before and of after: they
        go on without the pool, whatever is known later."""
        self._leave_out(list(self.tracked.values()))
        for one in self.others.values():
            one.apart = True

    def nothing_cached(self) -> None:
        """Nothing is left of what vLLM cached: no block is in use by a request."""
        self._contents.adapters.forgotten()

    def keep_apart(self) -> None:
        """What is computed from now on has names that only this engine knows."""
        self._contents.keep_apart()

    def _leave_out_misnamed(self) -> None:
        """Those under an adapter that is not, or may not be, what they are named by."""
        adapters = self._contents.adapters
        under = [one for one in self.tracked.values() if one.adapter is not None]
        self._leave_out([one for one in under if adapters.of(one.request) != one.adapter])

    def _leave_out(self, some: list[Tracked]) -> None:
        for one in some:
            self._ends_hand_off(one.request)
            self._drop(one.id)
            del self.tracked[one.id]
            self.others[one.id] = LeftOut(one.request, one.end, one.ran, apart=True)

    def _ends_hand_off(self, request: Any) -> None:
        if name := hand_off_of(request):
            self._handed.append(name)

    def _tracked(self, request: Any) -> Tracked | None:
        if not self._clients:
            return None
        try:
            content = self._contents.of(request, self._clients[0].space.layout.block_tokens)
        except Nameless as nameless:
            if why := str(nameless):
                self._tell(f"requests with {why} are not kept in the pool")
                self._ends_hand_off(request)
            return None
        if content.apart:
            self._ends_hand_off(request)  # nobody else finds what it stores
        tracked = Tracked(request, self._clients, self._align, content)
        if tracked.misnamed:
            self._tell("a hand-off is left out whose name no node takes: 1,024 bytes, no \\0")
        if tracked.follow and self._hybrid:
            # Of windows only full blocks are stored: it would wait for what does not come.
            self._tell("a hybrid model's prefills are not followed, what is stored is loaded")
            tracked.follow = ""
        return tracked


def _names(request: Any) -> set[str]:
    """What the images of a request are called."""
    return {one.identifier for one in request.mm_features}
