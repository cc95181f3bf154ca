"""How the engines that serve one model name its blocks: in one namespace, or where engines are of
several kinds, in as many. Which there are is asked of a conductor: nobody else knows all engines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from kvstore.client.conductors import ANSWER_SECONDS, Conductors
from kvstore.errors import KVStoreError, Unavailable
from kvstore.gateway.request import Request
from kvstore.limits import HASH_BYTES, RPC_KEYS_MAX
from kvstore.naming import names_of
from kvstore.rpc.threads import begin_thread
from kvstore.spec import KVSpec
from kvstore.wire.v1 import conductor_pb2

Ask = conductor_pb2.ScheduleRequest

KEPT_SECONDS = 1.0  # a list is as good as new: an engine of a new kind is met so much later
FIRST_SECONDS = 2.0  # for the first answer: nothing is known without it, and no channel is open
_ABSENT_SECONDS = 0.2  # a list that names nobody
_NONE = "no engine of yours with these weights"  # what a conductor names that has heard of none
_NAMELESS = "engines whose blocks nobody can name here"


@dataclass(frozen=True, slots=True)
class Space:
    """One namespace and group."""

    namespace: bytes
    group: int
    block_tokens: int
    samples: bool = False  # all engines there can: those of ours are greedy
    naming: str = ""  # of its blocks: see `kvstore.naming`
    # Digests of LoRA adapters' weights, by name; empty where blocks under one cannot be named.
    adapters: Mapping[str, bytes] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, spec: KVSpec) -> Space:
        """Of engines of ours, which have one group."""
        (group,) = spec.groups
        return cls(spec.digest, 0, group.block_tokens)

    def asked(self, request: Request) -> Ask:
        """What a conductor is asked about a request; its id and its phase are still to be said."""
        return Ask(
            namespace=self.namespace,
            group=self.group,
            hashes=self._hashes(request),
            tokens=len(request.prompt),
            ttft_ms=request.ttft_ms,
            tpot_ms=request.tpot_ms,
            client=request.client,
            # Else engines were refused for room that its answer need not have.
            max_new_tokens=0 if request.open_ended else request.max_new_tokens,
            as_many_as_fit=request.as_many_as_fit,
        )

    def _hashes(self, request: Request) -> Sequence[bytes]:
        """None where nobody said yet by which weights it is computed: then nothing of it is known
        to be anywhere."""
        weights = self.adapters.get(request.adapter, b"")
        if request.adapter and not weights:
            return ()
        names = names_of(self.namespace, self.group, self.block_tokens, self.naming)
        # Of very small blocks no more are made than are asked about.
        prompt = request.prompt[: RPC_KEYS_MAX * self.block_tokens]
        return names.of(prompt, request.salt, weights)


class Spaces(Protocol):
    """Safe to use from several threads."""

    @property
    def revision(self) -> str:
        """Of the weights that all of them have."""

    def now(self) -> Sequence[Space]:
        """Those that engines serve."""

    def why_none(self) -> str:
        """Why there are none, where that is so."""

    def first(self, asks: Sequence[Ask]) -> int:
        """In which of some spaces a request is best run: there is one at least."""

    def left(self) -> Set[str]:
        """Addresses of engines that have these weights no more. One of which nobody hears is not
        among them."""

    def addresses(self) -> Set[str]:
        """Of engines that have them."""


class One:
    """The namespace of engines that are all alike."""

    def __init__(self, spec: KVSpec) -> None:
        self._all, self.revision = (Space.of(spec),), spec.revision

    def now(self) -> Sequence[Space]:
        return self._all

    def why_none(self) -> str:
        return ""

    def first(self, asks: Sequence[Ask]) -> int:
        return 0

    def left(self) -> Set[str]:
        return frozenset()

    def addresses(self) -> Set[str]:
        return frozenset()


class Told:
    """What conductors say there is of these weights. While none says anything it is as before."""

    def __init__(self, conductors: Conductors, revision: str) -> None:
        self._conductors, self.revision = conductors, revision
        self._lock = threading.Lock()
        self._all: tuple[Space, ...] = ()
        self._left: Set[str] = frozenset()
        self._here: Set[str] = frozenset()
        self._why_none = "no conductor has answered"
        self._good_until = 0.0
        self._patience = FIRST_SECONDS

    def now(self) -> Sequence[Space]:
        with self._lock:
            if time.monotonic() < self._good_until:
                return self._all
            self._good_until = time.monotonic() + KEPT_SECONDS
            if not self._all:
                self._look()
            else:  # it goes on with what is known, also where no thread can be had now
                with suppress(Unavailable):
                    begin_thread(self._look_beside, "spaces", "the conductors")
            return self._all

    def why_none(self) -> str:
        return self._why_none

    def first(self, asks: Sequence[Ask]) -> int:
        """Where its first token would be soonest; also for one that all of them would refuse."""
        if len(asks) == 1:
            return 0
        plans = [(self._conductors.consider(one), at) for at, one in enumerate(asks)]
        soonest = [(plan.ttft_ms, at) for plan, at in plans if plan is not None]
        return min(soonest)[1] if soonest else 0

    def left(self) -> Set[str]:
        return self._left

    def addresses(self) -> Set[str]:
        return self._here

    def _look_beside(self) -> None:
        with suppress(KVStoreError):  # whoever asks in a space hears it
            self._look()

    def _look(self) -> None:
        said, why = list[conductor_pb2.CrewsReply](), list[str]()
        for address, one in self._conductors.crews(self.revision, self._patience):
            if isinstance(one, KVStoreError):
                why.append(f"{address} says that {one}" if one.answered else f"{one}")
                continue
            said.append(one)
            why.append(f"{address} names {_NAMELESS if one.crews else _NONE}")
            if one.crews and not self._all:
                break  # a request waits for this: what others say is heard when it is asked next
        self._patience = ANSWER_SECONDS
        # From now on: else, where all are waited for in vain, each request waits anew, in turn.
        self._good_until = time.monotonic() + KEPT_SECONDS
        self._why_none = "; ".join(why) or self._why_none
        if not said:
            return
        # One may not hear of engines that another does.
        crews = [one for each in said for one in each.crews]
        greedy = {_of(one) for one in crews if one.over_http != one.engines}
        known = [one for one in crews if one.block_tokens and _can_name(one)]
        adapters = _adapters(known)
        found = {
            of: Space(*of, of not in greedy, one.naming, adapters[of])
            for one in known
            if (of := _of(one))
        }
        self._all = tuple(found.values())
        self._here = {at for one in crews for at in one.addresses}
        self._left = {at for each in said for at in each.left} - self._here
        if not crews:
            self._good_until = time.monotonic() + _ABSENT_SECONDS


def _of(crew: conductor_pb2.CrewsReply.Crew) -> tuple[bytes, int, int]:
    return crew.namespace, crew.group, crew.block_tokens


def _adapters(
    crews: Sequence[conductor_pb2.CrewsReply.Crew],
) -> dict[tuple[bytes, int, int], dict[str, bytes]]:
    """What conductors say of each space, of which they may not have heard alike."""
    found: dict[tuple[bytes, int, int], dict[str, bytes]] = {_of(one): {} for one in crews}
    for crew in crews:
        here = found[_of(crew)]
        for one in crew.adapters:
            alike = here.setdefault(one.name, one.weights) == one.weights
            here[one.name] = one.weights if alike and len(one.weights) == HASH_BYTES else b""
    return found


def _can_name(crew: conductor_pb2.CrewsReply.Crew) -> bool:
    """Else its engines are newer than this gateway."""
    with suppress(KVStoreError):
        names_of(*_of(crew), crew.naming)
        return True
    return False
