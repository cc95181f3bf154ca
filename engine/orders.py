"""What rank 0 tells the other ranks before each step, and how: as JSON, which nobody executes.

A rank that has carried out the same orders and taken the same steps is in the same state, so orders
say only what came from outside: requests and when each is due, callers that hung up, and time that
is over. Each is a message, and no larger than what a caller may send; the last one before a step is
STEP.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .pool_use import PoolUse
from .sequence import Request

STEP = b""  # take a step, if there is anything to compute
END = b"end"  # the engine stops: no more will come


@dataclass(frozen=True, slots=True)
class Admit:
    """Queue a request, with what it wants of the pool."""

    request: Request
    enabled: bool
    hand_offs: tuple[bytes, ...] | None
    writer_group: str

    @classmethod
    def of(cls, request: Request, use: PoolUse) -> Admit:
        return cls(request, use.enabled, use.hand_offs, use.writer_group)

    def use(self) -> PoolUse:
        return PoolUse(self.enabled, self.hand_offs, writer_group=self.writer_group)


@dataclass(frozen=True, slots=True)
class Drop:
    """End a request, wherever it is."""

    request_id: str


Order = Admit | Drop


def encode(order: Order) -> bytes:
    return json.dumps(_plain(order)).encode()


def decode(message: bytes) -> Order:
    """The order of a message that `encode` made; raises `ValueError` for any other."""
    match json.loads(message):
        case [str(request_id)]:
            return Drop(request_id)
        case [
            str(request_id),
            list(prompt),
            int(max_new),
            list(eos),
            bool(ignore),
            float(due),
            bool(follows),
            str(salt),
            int() | None as logprobs,
            bool(enabled),
            list() | None as found,
            str(group),
        ]:
            request = Request(
                request_id,
                tuple(prompt),
                max_new,
                frozenset(eos),
                ignore,
                due,
                follows,
                salt,
                logprobs,
            )
            hand_offs = None if found is None else tuple(bytes.fromhex(one) for one in found)
            return Admit(request, enabled, hand_offs, group)
    raise ValueError(f"{message[:80]!r} is no order")


def _plain(order: Order) -> list[object]:
    if isinstance(order, Drop):
        return [order.request_id]
    request, hand_offs = order.request, order.hand_offs
    return [
        request.id,
        request.prompt,
        request.max_new_tokens,
        sorted(request.eos_ids),
        request.ignore_eos,
        request.due,
        request.follows,
        request.salt,
        request.logprobs,
        order.enabled,
        None if hand_offs is None else [one.hex() for one in hand_offs],
        order.writer_group,
    ]
