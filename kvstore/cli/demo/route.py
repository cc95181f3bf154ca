"""Says where the demo's requests run: it has one engine to prefill, one to decode, and asks their
node what it has of a prompt, where a fleet would ask a conductor.
"""

from __future__ import annotations

from kvstore.block import Chain
from kvstore.client import Client
from kvstore.config import OPEN
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.spaces import One
from kvstore.wire.v1 import conductor_pb2 as pb

LOCAL_TOKENS_MAX = 384  # both have one node: what is in the pool is no further away from either


class Pair:
    """A prefill and a decode engine at their addresses."""

    def __init__(self, prefill: str, decode: str, client: Client) -> None:
        self._prefill = pb.ScheduleReply.Place(engine_id="prefill", address=prefill)
        self._decode = pb.ScheduleReply.Place(engine_id="decode", address=decode)
        self._client = client

    def give_up(self, request: pb.ScheduleRequest) -> None:
        """Nothing is counted."""

    def schedule(self, request: pb.ScheduleRequest) -> pb.ScheduleReply | None:
        if request.phase == pb.DECODE:
            return None  # there is no other
        size = self._client.space.layout.block_tokens
        short = request.tokens % size
        full = request.tokens // size
        tokens = (size,) * full + ((short,) if short else ())
        found = self._client.match(Chain(tuple(request.hashes), tokens, size))
        split = pb.ScheduleReply.Split(computed_tokens=request.tokens - found.tokens)
        return pb.ScheduleReply(prefill=self._prefill, decode=self._decode, split=split)


def dispatcher(prefill: str, decode: str, client: Client) -> Dispatcher:
    """Through those two; what is to be computed without the pool the decode engine computes."""
    pair = Pair(prefill, decode, client)
    return Dispatcher(
        pair, One(client.space.spec), [decode], OPEN, local_tokens_max=LOCAL_TOKENS_MAX
    )
