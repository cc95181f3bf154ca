"""The blocking client: everything an engine asks of the pool, for one namespace.

A node that cannot be reached is a miss to whoever reads (`Miss.UNREACHABLE`) and an error to
whoever writes, who may as well drop what it wanted to publish.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from kvstore.block import Blocks, Chain, Keyed, Miss, chain, extend, foreign
from kvstore.client import keyed as each
from kvstore.client.bounds import UINT64_MAX, check_bounds
from kvstore.client.connection import Connection
from kvstore.client.hold import Hold
from kvstore.client.memory import check_target, memory_of
from kvstore.client.opened import miss_of
from kvstore.client.pinned import Pinned
from kvstore.client.reader import Reader
from kvstore.client.reserving import Reserving
from kvstore.client.space import Space, calls
from kvstore.client.windows import Windows
from kvstore.client.writer import Writer
from kvstore.config import Credentials
from kvstore.errors import (
    Invalid,
    KVStoreError,
    Lapsed,
    Overloaded,
    Rejected,
    SessionEnded,
    UnknownNamespace,
)
from kvstore.layout import Fragment
from kvstore.limits import DEADLINE_SECONDS_MAX, DEADLINE_SECONDS_MIN, REPLICAS_MAX
from kvstore.rpc.locator import Locator, located
from kvstore.spec import KVSpec
from kvstore.transfer.protocol import Memory
from kvstore.transfer.recode import recode
from kvstore.wire.v1 import kv_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Match:
    """The leading part of a chain that can be had now, and why no more."""

    blocks: int
    tokens: int
    miss: Miss | None


class Client:
    """One group of one namespace at one node. Safe to use from several threads."""

    def __init__(
        self,
        locator: Locator,
        spec: KVSpec,
        *,
        group: int = 0,
        label: str = "client",
        deadline_seconds: float = 2.0,
        transport: str = "auto",
        credentials: Credentials | None = None,
        copy_threads: int | None = None,
        device: Any = None,
    ) -> None:
        """`transport`: "shm" on the node's own host, "tcp" on any other; "auto" takes that.
        "ucx" where the node offers it and this process has NIXL: it is never taken unasked.

        `copy_threads`: how many threads of this process share one large copy from or to a node of
        its own host; None: as many as there are cores, up to a few.

        `device`: the `torch.device` of the GPU that all memory of this client is on. Where the node
        keeps blocks in HBM of that GPU, they go there and come from there."""
        if copy_threads is not None and copy_threads < 1:
            raise Invalid(f"copy_threads {copy_threads}: at least 1, or None for this host's own")
        bounds = DEADLINE_SECONDS_MIN, DEADLINE_SECONDS_MAX
        check_bounds("deadline_seconds", deadline_seconds, *bounds)
        self.space = Space.of(spec, group)
        told = (label, deadline_seconds, transport, credentials, copy_threads, device)
        self.connection = Connection(locator, *told)

    def of_group(self, group: int) -> Client:
        """This client for another group of its namespace, on the same connection."""
        other = copy.copy(self)
        other.space = Space.of(self.space.spec, group)
        return other

    @classmethod
    def at(cls, where: str | Path, spec: KVSpec, **options: Any) -> Client:
        """A client of the node at HOST:PORT, or of the node that runs in a directory.

        It shows `credentials` if they are given, else what the environment names (MOONPOOL_TLS_CA,
        _CERT, _KEY and MOONPOOL_TOKEN, or MOONPOOL_TOKEN_FILE), else nothing.
        """
        client = cls(located(where), spec, **options)
        try:
            client.register()
        except KVStoreError:
            client.close()
            raise
        return client

    @property
    def reachable(self) -> bool:
        """Whether the node answered last: a miss while it does is one of its own."""
        return self.connection.alive

    @property
    def node_id(self) -> str:
        """Of the node, where that answers. Raises `Unavailable`."""
        return str(self.connection.link().opened.node_id)

    def register(self) -> None:
        """Make the namespace known. Idempotent; a node that has forgotten it is told again."""
        request = pb.RegisterRequest(spec=self.space.spec.canonical(), namespace=self.space.digest)
        self.connection.call(lambda link: link.kv.Register, request)

    def chain(
        self, tokens: Sequence[int] | npt.NDArray[Any], extra: Mapping[int, bytes] | None = None
    ) -> Chain:
        """The blocks of a token sequence in this namespace and group."""
        space = self.space
        return chain(space.digest, space.group, tokens, space.layout.block_tokens, extra)

    def extended(
        self,
        known: Chain,
        more: Sequence[int] | npt.NDArray[Any],
        extra: Mapping[int, bytes] | None = None,
    ) -> Chain:
        """The blocks of a sequence whose full blocks before the tokens `more` are `known`."""
        return extend(known, self.space.digest, self.space.group, more, extra)

    def keyed(self, keys: Sequence[str | bytes], *, after: str | bytes | None = None) -> Keyed:
        """Blocks named by an engine's own keys, each full and each by itself.

        `after` says that they are in the order of a prompt: the key before the first, empty where
        there is none. What is stored so makes room before what it comes after, and is found
        without it.
        """
        space = self.space
        told = (space.digest, space.group)
        found = foreign(*told, keys, space.layout.block_tokens)
        if after is None:
            return found
        (before,) = foreign(*told, [after], 1).hashes if after else (b"",)
        return replace(found, after=before)

    def memory(
        self,
        tensors: Sequence[Any],
        axes: str,
        block_table: Any = None,
        head_first: int = 0,
        layer_first: int = 0,
    ) -> Memory:
        """Describe the engine's KV: one tensor a layer, axes by letter (see `memory_of`).

        A rank that has some of the layers or heads says which are its first: what is loaded into
        the memory is then that part of each block.
        """
        layout, dtype = self.space.layout, self.space.spec.dtype
        return memory_of(tensors, layout, dtype, axes, block_table, layer_first, head_first)

    def recode(self, memory: Memory, blocks: int) -> None:
        """Make of the first `blocks` full blocks in `memory` what the namespace's codec leaves.

        What was computed equals what is loaded only after this; with codec none, before too.
        """
        check_target(memory)
        recode(self.space.layout, memory, blocks)

    def match(self, blocks: Chain) -> Match:
        """How much of a chain's start is in the pool now."""
        each.only_chain(blocks)
        found = 0
        for some in calls(len(blocks)):
            part = blocks.between(some.start, some.stop)
            request = pb.MatchRequest(
                namespace=self.space.digest,
                group=self.space.group,
                hashes=part.hashes,
                last_tokens=part.tokens[-1],
            )
            try:
                reply = self._call(lambda link: link.kv.Match, request)
            except (Rejected, SessionEnded) as error:
                return Match(found, sum(blocks.tokens[:found]), _miss_by(error))
            found += reply.blocks
            if reply.blocks < len(part):
                return Match(found, sum(blocks.tokens[:found]), miss_of(reply.reason))
        return Match(found, blocks.token_count, None)

    def writer(
        self,
        blocks: Blocks,
        *,
        first: int = 0,
        fragment: Fragment | None = None,
        writer_group: str = "",
        hand_off: bool = False,
        origin: int = 0,
    ) -> Writer:
        """Reserve blocks `first` on for writing. Where pinned blocks fill the pool the node waits
        for room within this client's deadline, and then says `Overloaded`.

        `origin` tells readers what computed the bytes, where the caller has a number for that.
        """
        return self.windows(
            blocks,
            first=first,
            fragment=fragment,
            writer_group=writer_group,
            hand_off=hand_off,
            origin=origin,
        ).writer

    def windows(
        self,
        blocks: Blocks,
        *,
        first: int = 0,
        fragment: Fragment | None = None,
        writer_group: str = "",
        hand_off: bool = False,
        origin: int = 0,
    ) -> Windows:
        """Ask for what `writer` waits for; the node answers while the caller does other things.
        Of so many blocks that no socket holds the answer, it is waited for here."""

        def ask() -> Reserving:
            where = (self.connection, self.space, blocks, first, fragment)
            return Reserving(*where, writer_group, hand_off, origin)

        return self._again(lambda: Windows(ask, self._again))

    def reader(
        self,
        blocks: Chain,
        memory: Memory,
        *,
        first: int = 0,
        hand_offs: Sequence[bytes] = (),
        fragment: Fragment | None = None,
        pin_ms: int = 0,
        writer_group: str = "",
        writer_node: str = "",
    ) -> Reader:
        """Open blocks `first` on for loading into `memory`; poll it soon, since over tcp sealed
        blocks begin to come now.

        Blocks that are still being written are followed by their `hand_offs`, or by the name of
        their `writer_group` where the two sides have agreed on one; `writer_node` is the id, or the
        host, of the node that this group writes to, where it is another than the reader's.
        """
        each.only_chain(blocks)
        found = tuple(hand_offs)

        def follow() -> Reader:
            where = (self.connection, self.space, blocks, memory, first, found, fragment)
            return Reader(*where, pin_ms, writer_group, writer_node)

        return self._again(follow)

    def put(self, blocks: Blocks, memory: Memory, *, first: int = 0, replicas: int = 1) -> int:
        """Store and seal blocks `first` on from `memory`; how many were not there before.

        `replicas` nodes shall have them: see `Writer.seal`.
        """
        check_bounds("replicas", replicas, 0, REPLICAS_MAX)
        with self.writer(blocks, first=first) as writer:
            writer.put(memory)
            return writer.seal(replicas=replicas).count("SEALED")

    def get(self, blocks: Chain, memory: Memory, *, first: int = 0) -> Match:
        """Load what can be had of the chain from block `first` on; what is loaded is verified."""
        try:
            with self.reader(blocks, memory, first=first) as reader:
                reader.poll()
                return Match(reader.blocks, reader.tokens, reader.miss)
        except (Rejected, SessionEnded) as error:
            return Match(0, 0, _miss_by(error))

    def pin(self, blocks: Chain, *, pin_ms: int = 0) -> Pinned:
        """Pin blocks and read them where they lie, without a copy."""
        each.only_chain(blocks)
        return self._again(lambda: Pinned(self.connection, self.space, blocks, pin_ms))

    def exists_each(self, blocks: Blocks) -> list[bool]:
        """Which blocks can be had now; none where the node cannot be reached."""
        try:
            found = self._again(lambda: each.exists_each(self.connection, self.space, blocks))
        except (Rejected, SessionEnded):
            return [False] * len(blocks)
        return list(map(bool, found))

    def load_each(self, blocks: Keyed, memory: Memory) -> list[bool]:
        """Load whichever blocks can be had; True for each that is there whole and verified."""
        try:
            found = self._again(lambda: each.load_each(self.connection, self.space, blocks, memory))
        except (Rejected, SessionEnded):
            return [False] * len(blocks)
        return list(map(bool, found))

    def store_each(self, blocks: Keyed, memory: Memory) -> list[bool]:
        """Store blocks from `memory`; True for each that is known to be sealed, now or before."""
        try:
            self._again(lambda: each.store_all(self.connection, self.space, blocks, memory))
        except Overloaded:
            return self.exists_each(blocks)  # a part may have been stored, and some have been there
        except (Rejected, Lapsed):
            return [False] * len(blocks)
        return [True] * len(blocks)

    def forgo(self, writer_group: str) -> None:
        """Say that a writer group reserves nothing more: who follows it by its name waits for no
        more of it than it has. It is a name for once: a reader that comes early believes this."""

        def forgo() -> None:
            session = self.connection.link().session
            request = pb.AbortRequest(session=session, writer_group=writer_group)
            self.connection.call(lambda link: link.kv.Abort, request)

        self._again(forgo)

    def used(self, query_tokens: int, hit_tokens: int) -> None:
        """For the node's counters: tokens this engine looked for, and of those what it loaded.

        Match counts by itself; an engine that holds blocks asks more often than it uses.
        """
        check_bounds("query_tokens", query_tokens, 0, UINT64_MAX)
        check_bounds("hit_tokens", hit_tokens, 0, UINT64_MAX)
        session = self.connection.link().session
        request = pb.UnpinRequest(session=session, query_tokens=query_tokens, hit_tokens=hit_tokens)
        self.connection.call(lambda link: link.kv.Unpin, request)

    def quarantine(self, reason: str) -> None:
        """Say that KV of this namespace is wrong: nobody uses it until an operator releases it."""
        request = pb.QuarantineRequest(namespace=self.space.digest, reason=reason)
        self._call(lambda link: link.kv.Quarantine, request)

    def hold(self, blocks: Chain, *, pin_ms: int = 0) -> Hold:
        """Keep the leading blocks that are there from going, for another process to open."""
        each.only_chain(blocks)
        return self._again(lambda: Hold(self.connection, self.space, blocks, pin_ms))

    def remove(self, blocks: Blocks) -> int:
        """Take blocks out of the pool, as far as its nodes can be asked; how many were there.

        Raises `Unavailable`, too, where a restart of this client's own node may bring them back."""
        removed = 0
        for some in reversed(list(calls(len(blocks)))):  # deepest first, as the node does
            request = pb.RemoveRequest(
                namespace=self.space.digest, group=self.space.group, hashes=blocks.hashes[some]
            )
            removed += self._call(lambda link: link.kv.Remove, request).removed
        return removed

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Any, request: Any) -> Any:
        return self._again(lambda: self.connection.call(method, request))

    def _again(self, ask: Callable[[], T]) -> T:
        """Ask; and once more where the node has forgotten us: it was restarted, or a link broke."""
        try:
            return ask()
        except (UnknownNamespace, SessionEnded):
            self.register()
            return ask()


def _miss_by(error: KVStoreError) -> Miss:
    """What a call that could not be made now is to whoever reads."""
    return Miss.NO_ROOM if isinstance(error, Overloaded) else Miss.UNREACHABLE
