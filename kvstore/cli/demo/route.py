"""Sends one request through a prefill and a decode engine, as a small router would.

Prompts that are mostly in the pool go to the decode engine alone, which loads the prefix and
computes the rest; the others are prefilled elsewhere while the decode engine follows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvstore.cli.demo.workload import Ask
from kvstore.client import Client
from kvstore.config import OPEN
from kvstore.errors import KVStoreError
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import engine_pb2 as pb
from kvstore.wire.v1 import engine_pb2_grpc

log = logging.getLogger(__name__)

LOCAL_TOKENS_MAX = 384  # a prompt with fewer tokens to compute is not worth a hand-off
DEADLINE_SECONDS = 120.0


@dataclass(slots=True)
class Outcome:
    """What came of one request."""

    tokens: list[int] = field(default_factory=list)
    ttft_seconds: float = 0.0
    pool_tokens: int = 0  # loaded from blocks that earlier requests left
    hand_off_tokens: int = 0  # prefilled for this request and loaded behind the watermark
    computed_tokens: int = 0  # prompt tokens the decode engine computed
    loaded_bytes: int = 0
    miss: str = ""


class Router:
    """A prefill and a decode engine at their addresses."""

    def __init__(self, prefill: str, decode: str, client: Client) -> None:
        self._channels = [open_channel(prefill, OPEN), open_channel(decode, OPEN)]
        self._prefill, self._decode = (engine_pb2_grpc.EngineStub(c) for c in self._channels)
        self._client = client

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def with_pool(self, ask: Ask) -> Outcome:
        """Through the pool; the time to first token includes the look-up and the hand-off."""
        started = time.perf_counter()
        found = self._client.match(self._client.chain(ask.prompt))
        if len(ask.prompt) - found.tokens <= LOCAL_TOKENS_MAX:
            return self._generate(_request(ask, ask.id), started)
        prefill = _Prefill(self._prefill, ask)
        request = _request(ask, ask.id)
        hand_off = prefill.hand_off()
        if hand_off is not None:
            request.hand_off.CopyFrom(hand_off)
        outcome = self._generate(request, started)
        reused = prefill.reused_tokens()
        loaded = outcome.pool_tokens + outcome.hand_off_tokens
        outcome.pool_tokens = min(loaded, reused)
        outcome.hand_off_tokens = loaded - outcome.pool_tokens
        return outcome

    def without_pool(self, ask: Ask) -> Outcome:
        """The same request computed by the decode engine alone."""
        request = _request(ask, f"{ask.id} alone")
        request.without_pool = True
        return self._generate(request, time.perf_counter())

    def _generate(self, request: pb.GenerateRequest, started: float) -> Outcome:
        outcome = Outcome()
        with typed_errors("decode"):
            for reply in self._decode.Generate(request, timeout=DEADLINE_SECONDS):
                part = reply.WhichOneof("part")
                if part == "token":
                    if not outcome.tokens:
                        outcome.ttft_seconds = time.perf_counter() - started
                    outcome.tokens.append(reply.token)
                elif part == "started":
                    outcome.pool_tokens = reply.started.pool_tokens
                    outcome.hand_off_tokens = reply.started.hand_off_tokens
                    outcome.computed_tokens = reply.started.computed_tokens
                    outcome.loaded_bytes = reply.started.loaded_bytes
                    outcome.miss = reply.started.miss
        return outcome


class _Prefill:
    """A prefill under way, read in a thread of its own so that decode can follow it."""

    def __init__(self, stub: Any, ask: Ask) -> None:
        request = pb.PrefillRequest(request_id=ask.id, prompt=ask.prompt)
        self._replies: Iterator[pb.PrefillReply] = stub.Prefill(request, timeout=DEADLINE_SECONDS)
        self._hand_off: pb.HandOff | None = None
        self._reused = 0
        self._known, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def hand_off(self) -> pb.HandOff | None:
        """The hand-off, as soon as it is reserved; None if there will be none."""
        self._known.wait(DEADLINE_SECONDS)
        return self._hand_off

    def reused_tokens(self) -> int:
        self._over.wait(DEADLINE_SECONDS)
        return self._reused

    def _read(self) -> None:
        try:
            with typed_errors("prefill"):
                for reply in self._replies:
                    if reply.HasField("hand_off"):
                        self._hand_off = reply.hand_off
                        self._known.set()
                    else:
                        self._reused = reply.done.reused_tokens
        except KVStoreError as error:
            # Its death costs the decode engine a recompute, and this request nothing else.
            log.warning("prefill went away: %s", error)
        finally:
            self._known.set()
            self._over.set()


def _request(ask: Ask, request_id: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request_id, prompt=ask.prompt, max_new_tokens=ask.new_tokens, ignore_eos=True
    )
