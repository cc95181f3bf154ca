"""Who holds a block: asked of a conductor, or, where none knows of all, of the other nodes too.

What comes back is a hint. Whoever is named is asked, and decides.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from kvstore.clock import Clock
from kvstore.config import Credentials
from kvstore.core.fingerprints import TIERS_MAX
from kvstore.errors import KVStoreError, Unavailable
from kvstore.limits import HOLDERS_MAX, RPC_KEYS_MAX
from kvstore.metadata.records import ConductorRecord, NodeRecord
from kvstore.metadata.roster import Roster
from kvstore.node.peers import Peers, Rest
from kvstore.rpc.channel import open_async_channel
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import conductor_pb2_grpc, directory_pb2, directory_pb2_grpc

log = logging.getLogger(__name__)

ASK_SECONDS = 0.25  # what nobody has told by then is a miss
ASKED_MAX = 16  # nodes that are asked where no conductor knows of all

Holders = dict[str, NDArray[np.uint8]]  # by node: of each block asked for, its tiers


class Listed(NamedTuple):
    """Of some blocks: who lists them and may be asked, and which are listed by others too, who may
    not be asked now. `all_said`: nobody lists any that is not told here."""

    holders: Holders
    away: NDArray[np.bool_]
    all_said: bool

    @property
    def there(self) -> NDArray[np.bool_]:
        """Which are listed by somebody who may be asked."""
        found = np.zeros(len(self.away), dtype=np.bool_)
        for tiers in self.holders.values():
            found |= tiers > 0
        return found


class Whereabouts:
    """Answers for the whole pool, but this node."""

    def __init__(
        self,
        peers: Peers,
        conductors: Roster[ConductorRecord],
        clock: Clock,
        dice: random.Random,
        credentials: Credentials,
    ) -> None:
        self._peers, self._conductors = peers, conductors
        self._clock, self._dice, self._credentials = clock, dice, credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._resting: dict[str, Rest] = {}  # conductors by address: nobody waits for the dead

    @property
    def alone(self) -> bool:
        """Whether there is nobody else who could hold a block."""
        return not (self._peers.known() or self._peers.resting())

    async def holders(self, keys: Sequence[bytes]) -> Holders:
        """Those who list some of these blocks, by stored key, and may be asked now."""
        return (await self.listed(keys)).holders

    async def listed(self, keys: Sequence[bytes]) -> Listed:
        found, away = Holders(), np.zeros(len(keys), dtype=np.bool_)
        if not keys or self.alone:
            return Listed(found, away, True)
        asked = list(keys[:RPC_KEYS_MAX])
        request = directory_pb2.HoldersRequest(fingerprints=b"".join(key[:8] for key in asked))
        told, all_said = await self._told(request)
        for one in told:
            if len(one.tiers) != len(asked):
                all_said = False
                continue
            there = np.zeros(len(keys), dtype=np.uint8)
            # Tiers that this node does not know are none.
            there[: len(asked)] = np.frombuffer(one.tiers, dtype=np.uint8) & TIERS_MAX
            if self._peers.may_ask(one.node_id, one.epoch):
                found[one.node_id] = there
            elif self._peers.rests(one.node_id, one.epoch):
                away |= there > 0
            elif self._peers.may_ask(one.node_id):  # it has been started anew since
                all_said = False
        return Listed(found, away, all_said)

    async def close(self) -> None:
        for address in list(self._channels):
            self._hang_up(address)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _told(self, request: Any) -> tuple[list[Any], bool]:
        """Holders that a conductor names which knows of all nodes; else those that others name, but
        of nodes that answer only what these say of themselves, which may be that they list nothing.
        And whether nobody else has a word to say."""
        self._forget_the_gone()
        conductors = [one for one in self._serving() if not self._rests(one)]
        self._dice.shuffle(conductors)
        said = list[Any]()  # by those that lack a node: they began just now, or do not reach it
        for address in conductors[:2]:
            stub = conductor_pb2_grpc.ConductorStub(self._channel(address))
            if (reply := await self._ask(address, stub.Holders, request)) is not None:
                self._resting.pop(address, None)
                if not reply.approximate:
                    return _named([reply]), len(reply.holders) < HOLDERS_MAX
                said.append(reply)
            elif not self._rests(address):  # else others were told the same at the same time
                self._resting[address] = Rest.after(self._resting.get(address), self._clock.now())
        nodes = self._peers.known()
        if said and len(nodes) > ASKED_MAX:  # that is of most of them, and not of a sample
            return _named(said), False
        some = self._dice.sample(nodes, min(ASKED_MAX, len(nodes)))
        asks = [self._ask_node(one, request) for one in some]
        replies = zip(some, await asyncio.gather(*asks), strict=True)
        answers = {node.node_id: reply for node, reply in replies if reply is not None}
        all_said = len(answers) == len(nodes) and not self._peers.resting()
        of_others = [one for one in _named(said) if one.node_id not in answers]
        return of_others + _named(answers.values()), all_said

    def _serving(self) -> list[str]:
        return [one.address for one in self._conductors if one.state == "serving"]

    def _rests(self, address: str) -> bool:
        rest = self._resting.get(address)
        return rest is not None and rest.until > self._clock.now()

    async def _ask_node(self, node: NodeRecord, request: Any) -> Any:
        stub = directory_pb2_grpc.DirectoryStub(self._channel(node.address))
        return await self._ask(node.address, stub.Holders, request, node.node_id)

    async def _ask(self, address: str, method: Any, request: Any, node_id: str = "") -> Any:
        try:
            with typed_errors(address):
                return await method(request, timeout=ASK_SECONDS)
        except KVStoreError as error:
            log.info("%s does not say who holds what: %s", address, error)
            self._hang_up(address)
            if node_id and isinstance(error, Unavailable):
                self._peers.failed(node_id)
            return None

    def _forget_the_gone(self) -> None:
        there = {*self._serving(), *self._peers.addresses()}
        for address in self._channels.keys() - there:
            self._hang_up(address)
        for address in self._resting.keys() - there:
            del self._resting[address]

    def _hang_up(self, address: str) -> None:
        """The next question goes by a new connection. Calls under way may end."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            task = asyncio.create_task(channel.close(2 * ASK_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = open_async_channel(address, self._credentials)
        return self._channels[address]


def _named(replies: Iterable[Any]) -> list[Any]:
    return [one for reply in replies for one in reply.holders]
