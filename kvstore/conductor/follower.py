"""Follows one node for as long as it is told to: a stream that breaks, or falls silent, is begun
again after a pause of chance, which grows while the node cannot be reached."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import grpc

from kvstore.clock import Clock
from kvstore.conductor.silence import heard_within
from kvstore.conductor.tracked import Tracked
from kvstore.config import Credentials
from kvstore.errors import KVStoreError, Unavailable
from kvstore.limits import FOLLOW_SILENCE_SECONDS
from kvstore.rpc.channel import open_async_channel
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import directory_pb2, directory_pb2_grpc

log = logging.getLogger(__name__)

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.1, 2.0


async def follow(
    tracked: Tracked,
    address: str,
    heard: Callable[[], None],
    clock: Clock,
    dice: random.Random,
    credentials: Credentials,
) -> None:
    """Until cancelled; `heard` is called after each message."""
    pause, complaint = PAUSE_SECONDS_MIN, ""

    def took(reply: directory_pb2.FollowReply) -> None:
        nonlocal pause, complaint
        heard()
        if reply.WhichOneof("part") == "entries":  # a snapshot, if there was one, is whole
            pause, complaint = PAUSE_SECONDS_MIN, ""

    while True:
        try:
            await _stream(tracked, address, credentials, took)
        except KVStoreError as error:
            if str(error) != complaint:
                log.warning("node %s is not followed: %s", tracked.node_id, error)
            complaint = str(error)
        except Exception:
            log.exception("following node %s failed in a way nobody foresaw", tracked.node_id)
        await clock.sleep(pause * dice.uniform(0.5, 1.0))
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


async def _stream(
    tracked: Tracked,
    address: str,
    credentials: Credentials,
    took: Callable[[directory_pb2.FollowReply], None],
) -> None:
    async with open_async_channel(address, credentials) as channel:
        call = directory_pb2_grpc.DirectoryStub(channel).Follow(tracked.request())
        try:
            with typed_errors(tracked.node_id):
                while True:
                    async with heard_within(FOLLOW_SILENCE_SECONDS):
                        reply = await call.read()
                    if reply is grpc.aio.EOF:
                        raise Unavailable("the node ended the stream")
                    tracked.take(reply)
                    took(reply)
        except TimeoutError:
            raise Unavailable(f"nothing heard for {FOLLOW_SILENCE_SECONDS} s") from None
        finally:
            call.cancel()
