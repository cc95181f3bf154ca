"""What one engine reports, taken message by message, as `tracked.py` takes what a node says. Pure.

Every field is bounded and checked before any of its message counts: what cannot be ends the stream
by an error that names the field, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Sized

from kvstore.address import check_engine
from kvstore.conductor.crews import Whose
from kvstore.conductor.engines import Engine
from kvstore.conductor.facts import Facts, Role
from kvstore.conductor.in_flight import NO_PRINTS
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.stored import stored_prints
from kvstore.core.cost import BATCH_MAX, DecodeCost, PrefillCost, TransferCost
from kvstore.core.fingerprints import Prints
from kvstore.core.fit import BYTES_MAX, SECONDS_MAX, TOKENS_MAX
from kvstore.errors import Invalid, Unavailable
from kvstore.limits import (
    BLOCK_TOKENS_MAX,
    ENGINE_ADAPTERS_MAX,
    GROUPS_MAX,
    HASH_BYTES,
    LABEL_BYTES_MAX,
    LINK_SPEEDS,
    NAME_BYTES_MAX,
    REPORT_BLOCKS_MAX,
    REPORT_MEASURED_MAX,
    REPORT_REQUESTS_MAX,
    REQUEST_ID_BYTES_MAX,
    RPC_KEYS_MAX,
)
from kvstore.wire.v1 import conductor_pb2 as pb

BEGIN_SECONDS = 1.0  # in which what was there before a stream began may be told
_TOKEN_BYTES_MAX = 1 << 30  # of KV, of one token
_ROOM_TOKENS_MAX = 1 << 40


class Reporter:
    """One stream. `secret` is its tenant's, or None where the tenant is not known any more."""

    def __init__(
        self, scheduler: Scheduler, tenant: str, secret: Callable[[], bytes | None]
    ) -> None:
        self._scheduler, self._tenant, self._secret = scheduler, tenant, secret
        self.whose: Whose = (tenant, b"", 0)
        self.engine: Engine | None = None
        self._begun = -math.inf  # when it said who it is

    def waits(self) -> None:
        """A message has come and is yet to be taken: its engine is not silent."""
        if self.engine is not None:
            self.engine.heard = math.inf

    def take(self, message: pb.ReportRequest, now: float) -> None:
        """Raises `Invalid` for what cannot be, `Unavailable` where the engine was given up
        meanwhile, and `Overloaded`."""
        if self.engine is None:
            if not message.HasField("engine"):
                raise Invalid("engine is absent: the first message says who reports")
            facts = facts_of(message.engine)
            _check(message, facts.block_tokens)
            self.whose = (self._tenant, message.engine.namespace, message.engine.group)
            self.engine, self._begun = self._scheduler.enter(self.whose, facts, now), now
        else:
            if message.HasField("engine"):
                raise Invalid("engine was said before: another engine begins another stream")
            if not self._scheduler.has(self.whose, self.engine):
                raise Unavailable("this engine was silent, or reports on another stream", 1)
            _check(message, self.engine.facts.block_tokens)
        self.engine.heard = now
        self._measure(message, self.engine, now)
        self._follow(message, self.engine, now)
        if message.leaves:
            self._scheduler.leave_for_good(self.whose, self.engine, now)

    def end(self, now: float) -> None:
        """The stream is over, whoever ended it."""
        if self.engine is not None:
            self._scheduler.leave(self.whose, self.engine, now)

    def _measure(self, message: pb.ReportRequest, engine: Engine, now: float) -> None:
        crew, _ = self._scheduler.crew(self.whose)
        for one in message.prefills:
            if engine.prefill is not None:
                engine.prefill.observe(one.new_tokens, one.prefix_tokens, one.seconds)
        for step in message.steps:
            if engine.decode is not None:
                engine.decode.observe(step.batch, step.context_tokens, step.seconds)
        if message.prefills:
            crew.prefilled(engine, now)
        if message.steps:
            crew.stepped(engine)
        for moved in message.transfers:
            came = crew.read if moved.of_ssd else crew.moved
            came(engine.host, moved.bytes, moved.seconds)

    def _follow(self, message: pb.ReportRequest, engine: Engine, now: float) -> None:
        crew, in_flight = self._scheduler.crew(self.whose)
        # With what was there, and may have been told of before.
        begins = now < self._begun + BEGIN_SECONDS
        for one in message.accepted:
            work, prints = 0.0, NO_PRINTS
            if engine.prefill is None:
                in_flight.elsewhere(one.request_id, now)
                continue
            if not in_flight.knows(one.request_id, engine):
                if not begins and self._scheduler.decided(self.whose, one.request_id) is None:
                    crew.roles.asked_elsewhere(now)
                prints = self._prints(one.hashes)
                known = self._scheduler.found(self.whose, engine, prints, now) * crew.block_tokens
                prefix = min(max(one.prefix_tokens, known), one.tokens - 1)
                new, row = one.tokens - prefix, crew.fleet.engines[engine.number]
                pairs = row["prefill_c"] * (new + 2.0 * prefix)
                work = float(row["prefill_a"] + new * (row["prefill_b"] + pairs))
            in_flight.accepted(one.request_id, engine, work, prints, now, one.tokens)
        for request in message.began:
            in_flight.began(request, engine, now)
        for request in message.ended:
            in_flight.ended(request, engine, now)
        for request in message.decoding:
            in_flight.decoding(request, engine, now)
        for request in message.given_up:
            in_flight.given_up(request, engine, now)
        if message.cleared or message.dropped or message.held:
            dropped, held = self._prints(message.dropped), self._prints(message.held)
            self._scheduler.own(self.whose, engine, message.cleared, dropped, held)
        for adapter in message.adapters:
            engine.loaded(adapter.name, adapter.weights)
        if message.HasField("load"):
            engine.batch, engine.context_tokens = message.load.batch, message.load.context_tokens
            crew.load(engine)
        if message.over.sequences:
            crew.answers.over(message.over.sequences, message.over.output_tokens)
        self._scheduler.serve(self.whose, engine, now)

    def _prints(self, hashes: Sequence[bytes]) -> Prints:
        secret = self._secret()
        if secret is None or not hashes:
            return NO_PRINTS
        return stored_prints(secret, self.whose[1], self.whose[2], hashes)


def facts_of(engine: pb.ReportRequest.Engine) -> Facts:
    """Raises `Invalid` naming the field."""
    check_text("engine.engine_id", engine.engine_id, NAME_BYTES_MAX)
    check_text("engine.node_id", engine.node_id, NAME_BYTES_MAX)
    check_text("engine.address", engine.address, NAME_BYTES_MAX)
    check_engine("engine.address", engine.address)
    for name in ("revision", "kind", "naming"):
        if getattr(engine, name):
            check_text(f"engine.{name}", getattr(engine, name), NAME_BYTES_MAX)
    if len(engine.namespace) != HASH_BYTES:
        size = len(engine.namespace)
        raise Invalid(f"engine.namespace is {size} bytes; a digest has {HASH_BYTES}")
    _in("engine.group", engine.group, 0, GROUPS_MAX - 1)
    _in("engine.block_tokens", engine.block_tokens, 1, BLOCK_TOKENS_MAX)
    _in("engine.token_bytes", engine.token_bytes, 1, _TOKEN_BYTES_MAX)
    _in("engine.room_tokens", engine.room_tokens, 1, _ROOM_TOKENS_MAX)
    _in("engine.link_bytes_per_second", engine.link_bytes_per_second, *LINK_SPEEDS)
    if engine.ssd_bytes_per_second:
        _in("engine.ssd_bytes_per_second", engine.ssd_bytes_per_second, *LINK_SPEEDS)
    for name in ("rack", "nvlink_domain"):
        if getattr(engine, name):
            check_text(f"engine.{name}", getattr(engine, name), LABEL_BYTES_MAX)
    for name in ("domain_bytes_per_second", "cross_rack_bytes_per_second"):
        if getattr(engine, name):
            _in(f"engine.{name}", getattr(engine, name), *LINK_SPEEDS)
    if not (engine.HasField("prefill") or engine.HasField("decode")):
        raise Invalid("engine.prefill and engine.decode are absent: give the cost of what it does")
    if engine.elastic not in pb.Role.values():
        raise Invalid(f"engine.elastic = {engine.elastic}: one of Role is wanted")
    if engine.elastic and not (engine.HasField("prefill") and engine.HasField("decode")):
        raise Invalid("engine.elastic: one that can switch gives the costs of both")
    return Facts(
        engine.engine_id,
        engine.address,
        engine.node_id,
        engine.block_tokens,
        engine.token_bytes,
        engine.room_tokens,
        PrefillCost(*_cost("prefill", engine.prefill)) if engine.HasField("prefill") else None,
        DecodeCost(*_cost("decode", engine.decode)) if engine.HasField("decode") else None,
        TransferCost(1e-3, engine.link_bytes_per_second),
        TransferCost(1e-4, engine.ssd_bytes_per_second) if engine.ssd_bytes_per_second else None,
        engine.data_parallel_rank if engine.HasField("data_parallel_rank") else None,
        Role(engine.elastic),
        engine.rack,
        engine.nvlink_domain,
        engine.domain_bytes_per_second,
        engine.cross_rack_bytes_per_second,
        engine.revision,
        engine.kind,
        engine.naming,
        engine.followed,
    )


def check_text(name: str, text: str, bytes_max: int) -> None:
    """Raises `Invalid` unless it is short printable text."""
    size = len(text.encode())
    if not 0 < size <= bytes_max or not text.isprintable():
        raise Invalid(f"{name} is {size} bytes: 1 to {bytes_max} of printable text are wanted")


def hashes_of(name: str, given: Sequence[bytes], tokens: int, block_tokens: int) -> list[bytes]:
    """Read once: what a message has makes each anew whenever it is read. Raises `Invalid` unless
    they can be those of a prompt of so many tokens."""
    if len(given) > RPC_KEYS_MAX:
        raise Invalid(f"{name}: {len(given)} in one call; send at most {RPC_KEYS_MAX}")
    if (len(given) - 1) * block_tokens >= tokens:
        size = f"{len(given)} blocks of {block_tokens} tokens"
        raise Invalid(f"{name}: {size} are more than the prompt's {tokens}")
    hashes = list(given)
    _check_sizes(name, hashes)
    return hashes


def _check_sizes(name: str, hashes: Iterable[bytes]) -> None:
    if {*map(len, hashes)} <= {HASH_BYTES}:
        return
    for i, one in enumerate(hashes):
        if len(one) != HASH_BYTES:
            raise Invalid(f"{name}[{i}] is {len(one)} bytes; a block hash has {HASH_BYTES}")


def _check(message: pb.ReportRequest, block_tokens: int) -> None:
    """Raises `Invalid` for the first field of a report that cannot be."""
    for name in ("prefills", "steps", "transfers"):
        _count(name, getattr(message, name), REPORT_MEASURED_MAX)
    for i, one in enumerate(message.prefills):
        _in(f"prefills[{i}].new_tokens", one.new_tokens, 1, TOKENS_MAX)
        _in(f"prefills[{i}].prefix_tokens", one.prefix_tokens, 0, TOKENS_MAX)
        _in(f"prefills[{i}].seconds", one.seconds, 0, SECONDS_MAX)
    for i, step in enumerate(message.steps):
        _in(f"steps[{i}].batch", step.batch, 1, BATCH_MAX)
        _in(f"steps[{i}].context_tokens", step.context_tokens, 0, TOKENS_MAX * BATCH_MAX)
        _in(f"steps[{i}].seconds", step.seconds, 0, SECONDS_MAX)
    _in("over.sequences", message.over.sequences, 0, BATCH_MAX)
    most = TOKENS_MAX * message.over.sequences
    _in("over.output_tokens", message.over.output_tokens, 0, most)
    for i, moved in enumerate(message.transfers):
        _in(f"transfers[{i}].bytes", moved.bytes, 1, BYTES_MAX)
        _in(f"transfers[{i}].seconds", moved.seconds, 0, SECONDS_MAX)
    _in("load.batch", message.load.batch, 0, BATCH_MAX)
    _in("load.context_tokens", message.load.context_tokens, 0, TOKENS_MAX * BATCH_MAX)
    _count("accepted", message.accepted, REPORT_REQUESTS_MAX)
    for i, accepted in enumerate(message.accepted):
        check_text(f"accepted[{i}].request_id", accepted.request_id, REQUEST_ID_BYTES_MAX)
        _in(f"accepted[{i}].tokens", accepted.tokens, 1, TOKENS_MAX)
        _in(f"accepted[{i}].prefix_tokens", accepted.prefix_tokens, 0, accepted.tokens - 1)
        hashes_of(f"accepted[{i}].hashes", accepted.hashes, accepted.tokens, block_tokens)
    if sum(len(one.hashes) for one in message.accepted) > RPC_KEYS_MAX:
        raise Invalid(f"accepted: one message has at most {RPC_KEYS_MAX} hashes in all")
    _count("adapters", message.adapters, ENGINE_ADAPTERS_MAX)
    for i, adapter in enumerate(message.adapters):
        check_text(f"adapters[{i}].name", adapter.name, LABEL_BYTES_MAX)
        if len(adapter.weights) not in (0, HASH_BYTES):
            size = len(adapter.weights)
            raise Invalid(f"adapters[{i}].weights is {size} bytes; a digest has {HASH_BYTES}")
    for name in ("began", "ended", "decoding", "given_up"):
        check_ids(name, getattr(message, name))
    for name in ("dropped", "held"):
        _count(name, getattr(message, name), REPORT_BLOCKS_MAX)
        _check_sizes(name, getattr(message, name))


def check_ids(name: str, ids: Sequence[str]) -> None:
    """Raises `Invalid` unless they are ids of so many requests as one message may have."""
    _count(name, ids, REPORT_REQUESTS_MAX)
    for i, one in enumerate(ids):
        check_text(f"{name}[{i}]", one, REQUEST_ID_BYTES_MAX)


def _count(name: str, those: Sized, most: int) -> None:
    if len(those) > most:
        raise Invalid(f"{name}: {len(those)} in one message; send at most {most}")


def _in(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # so for NaN
        raise Invalid(f"{name} = {value}: from {least:g} to {most:g} is wanted")


def _cost(name: str, cost: pb.ReportRequest.Cost) -> tuple[float, float, float]:
    for part in ("a", "b", "c"):
        value = getattr(cost, part)
        if not (math.isfinite(value) and 0 <= value <= SECONDS_MAX):
            raise Invalid(f"engine.{name}.{part} = {value}: seconds from 0 to {SECONDS_MAX:g}")
    return cost.a, cost.b, cost.c
