"""What each transport to another node can do: measured when the two first meet, and remembered.

A wrong setting is told early: a transport that does not work is an error in the log, one that is
far slower than the best of its link a warning. No fetch waits for that: a probe begins in a quiet
moment and moves a few MiB at most, to one peer at a time, and is given up after a few seconds. A
peer that started anew is measured anew, any other again when it is met some minutes later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvstore.clock import Clock
from kvstore.errors import KVStoreError, Unavailable
from kvstore.limits import NODES_MAX
from kvstore.node.link import Link
from kvstore.telemetry import Telemetry
from kvstore.transfer.probe import Complaint, Probe, judge

log = logging.getLogger(__name__)

AGAIN_SECONDS = 300.0  # a peer that is met again later than this is measured again
HEARD_SECONDS = 2.0  # a peer that ends breaks its data connections before it ends its sessions
PROBE_SECONDS = 5.0  # that one may take
PAUSE_SECONDS = 0.5  # what a fetch takes that was the reason to meet
QUIET_SECONDS_MAX = 10.0  # a link that is never quiet is measured all the same


@dataclass(frozen=True, slots=True)
class Contact:
    """One start of a peer, and what its transports gave when it was met last."""

    node_id: str
    epoch: int
    address: str
    at: float
    probed: bool = False  # or being probed; else it let no data connection in
    measured: Mapping[str, Probe | KVStoreError] = field(default_factory=dict)  # empty: not yet

    @property
    def complaints(self) -> list[Complaint]:
        return judge(self.measured)

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The least is the worst."""
        found = self.complaints
        rates = [one.slowest for one in self.measured.values() if isinstance(one, Probe)]
        return not any(one.error for one in found), not found, min(rates, default=0.0)


class Contacts:
    """The peers that this node has met. In the node's loop."""

    def __init__(self, clock: Clock, counters: Telemetry) -> None:
        self._clock, self._counters = clock, counters
        self._known: OrderedDict[str, Contact] = OrderedDict()  # by node; who was met last is last
        self._late = set[str]()  # nodes of which a transport was, since they were last met
        self._said: dict[tuple[str, str], float] = {}  # when it was, of a node and transport
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()  # two probes at once would measure each other

    def met(self, link: Link) -> None:
        """A link has begun: its transports are measured beside it, unless they lately were."""
        self._late.discard(link.node_id)
        last, since = self._known.get(link.node_id), self._clock.now() - AGAIN_SECONDS
        if last is not None and last.probed and last.epoch == link.epoch and last.at > since:
            return
        self._keep(link, probed=True)
        if link.node_id in self._tasks:
            self._tasks[link.node_id].cancel()
        self._tasks[link.node_id] = task = asyncio.create_task(self._measure(link))
        task.add_done_callback(lambda task: self._ended(link.node_id, task))

    def refused(self, link: Link, transport: str, error: Exception) -> None:
        """The peer answers calls, and this transport of its was not to be had. One that was late
        may have stood still: what is late again before it is met is not to be had."""
        if isinstance(error, TimeoutError) and link.node_id not in self._late:
            if len(self._late) == NODES_MAX:
                self._late.clear()
            self._late.add(link.node_id)
            return
        why = Unavailable(str(error) or "it did not answer in time")
        self._judge(self._keep(link, measured={transport: why}))

    def worst(self, count: int) -> list[Contact]:
        """So many of those that are known: what does not work first, then the slowest."""
        known = [one for one in self._known.values() if one.measured]
        return sorted(known, key=lambda one: one.rank)[:count]

    def seconds_since(self, contact: Contact) -> float:
        return self._clock.now() - contact.at

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _measure(self, link: Link) -> None:
        await self._quiet(link)
        measured = await self._probed(link)
        if _failed(measured) and link.alive and not link.busy:
            await self._clock.sleep(HEARD_SECONDS)  # it may be ending, or have stood still
            if link.alive and not link.busy:
                measured = await self._probed(link)
        alone = not link.busy
        if _failed(measured) and link.alive and alone:
            await self._clock.sleep(HEARD_SECONDS)  # nor is it heard yet that one that hung ended
        if _failed(measured) and not (link.alive and alone):
            self._known.pop(link.node_id, None)  # it ended, or others had it: no setting is wrong
        else:
            self._judge(self._keep(link, probed=True, measured=measured))

    async def _probed(self, link: Link) -> Mapping[str, Probe | KVStoreError]:
        async with self._turn:
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    return await link.probe()
            except TimeoutError:
                return {"tcp": Unavailable(f"a probe did not end in {PROBE_SECONDS:.0f} s")}

    async def _quiet(self, link: Link) -> None:
        """Return when nothing is fetched over it, or when that takes too long."""
        until = self._clock.now() + QUIET_SECONDS_MAX
        await self._clock.sleep(PAUSE_SECONDS)
        while link.busy and self._clock.now() < until:
            await self._clock.sleep(PAUSE_SECONDS)

    def _keep(self, link: Link, **found: Any) -> Contact:
        made = Contact(link.node_id, link.epoch, link.address, self._clock.now(), **found)
        self._known[link.node_id] = made
        self._known.move_to_end(link.node_id)
        while len(self._known) > NODES_MAX:
            self._known.popitem(last=False)
        return made

    def _judge(self, contact: Contact) -> None:
        """Count what was measured, and say aloud what is wrong with it, if it was not said just
        now."""
        self._counters.add("probes", len(contact.measured))
        since = contact.at - AGAIN_SECONDS
        self._said = {key: at for key, at in self._said.items() if at > since}
        for one in contact.complaints:
            self._counters.add("probe_failures" if one.error else "probe_warnings")
            key = (contact.node_id, one.transport)
            if key not in self._said:
                self._said[key] = contact.at
                say = log.error if one.error else log.warning
                who = f"node {contact.node_id} at {contact.address}"
                say("%s: %s %s", who, one.transport, one.text)

    def _ended(self, node_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(node_id) is task:
            del self._tasks[node_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what node %s can do was not measured: %r", node_id, error)


def _failed(measured: Mapping[str, Probe | KVStoreError]) -> bool:
    return any(isinstance(one, KVStoreError) for one in measured.values())
