"""The engine as a gRPC service: prefill with a hand-off, generate, and say what it is."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

from kvstore import traces
from kvstore.errors import Invalid, Overloaded, Unavailable
from kvstore.limits import REQUEST_ID_BYTES_MAX
from kvstore.rpc.handler import typed
from kvstore.spec import KVSpec
from kvstore.wire.v1 import engine_pb2 as pb
from kvstore.wire.v1 import engine_pb2_grpc

from .core import FinishEvent, TokenEvent
from .errors import RequestTooLong
from .pool_use import PoolUse
from .sequence import Request
from .turn import due
from .worker import Failed, Job, JobEvent, Started, Waits, Worker

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types
Reserved: TypeAlias = tuple[bytes, ...]

SALT_MAX = 1_024  # characters, as vLLM takes
_RETRY_MS = 1_000  # before somebody may be known who has the weights that are asked for


class EngineService(engine_pb2_grpc.EngineServicer):
    """The Engine service. Each method is documented in proto/moonpool/v1/engine.proto."""

    def __init__(self, worker: Worker, role: str, model: str, spec: KVSpec) -> None:
        self._worker = worker
        self.role, self._model, self._spec = role, model, spec
        self._eos = frozenset(worker.core.model.config.eos_ids)

    @typed
    async def Prefill(
        self, request: pb.PrefillRequest, context: Context
    ) -> AsyncIterator[pb.PrefillReply]:
        self._check_weights(request.revision)
        # One new token is the least an engine makes; the decode engine makes it anew.
        now = time.monotonic()
        asked = Request(
            _checked(request.request_id),
            self._prompt(request),
            1,
            due=_due(request.turn, now),
            salt=_salt(request.cache_salt),
        )
        use = PoolUse(handed_off=True)
        started: Started | None = None
        async for event in self._events(asked, use, _begin_by(request.turn, now)):
            if isinstance(event, tuple):
                yield pb.PrefillReply(hand_off=pb.HandOff(handles=event))
            elif isinstance(event, Started):
                started = event
        assert started is not None, "a request that finished has started"
        done = pb.PrefillReply.Done(
            reused_tokens=use.pool_tokens,
            computed_tokens=started.computed_tokens,
            published=use.complete,
            miss=use.miss,
        )
        yield pb.PrefillReply(done=done)

    @typed
    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateReply]:
        self._check_weights(request.revision)
        now = time.monotonic()
        asked = Request(
            _checked(request.request_id),
            self._prompt(request),
            self._most(request),
            self._eos,
            request.ignore_eos,
            _due(request.turn, now),
            request.HasField("hand_off"),
            _salt(request.cache_salt),
            request.logprobs if request.HasField("logprobs") else None,
        )
        use = PoolUse(enabled=not request.without_pool)
        if request.HasField("hand_off"):
            use.hand_offs = _hand_offs(request)
        async for event in self._events(asked, use, _begin_by(request.turn, now)):
            if isinstance(event, Started):
                yield pb.GenerateReply(started=_started(event))
            elif isinstance(event, Waits):
                yield pb.GenerateReply()
            elif isinstance(event, TokenEvent):
                yield pb.GenerateReply(token=event.token, logprobs=_logprobs(event))
        finished = pb.GenerateReply.Finished(published_blocks=use.published_blocks)
        yield pb.GenerateReply(finished=finished)

    @typed
    async def EngineInfo(
        self, request: pb.EngineInfoRequest, context: Context
    ) -> pb.EngineInfoReply:
        allocator = self._worker.core.cache.allocator
        return pb.EngineInfoReply(
            role=self.role,
            model=self._model,
            namespace=self._spec.digest,
            revision=self._spec.revision,
            pages=allocator.pages,
            pages_free=allocator.free,
            requests=self._worker.requests,
        )

    def _check_weights(self, revision: str) -> None:
        """With each call: another process was here, maybe, when its caller last looked."""
        if revision not in ("", self._spec.revision):
            text = f"it has other weights than it was asked for: {self._spec.revision}"
            raise Unavailable(text, _RETRY_MS)

    def _prompt(self, request: pb.PrefillRequest | pb.GenerateRequest) -> tuple[int, ...]:
        """Not read where it alone is more than may ever run: a message has room for millions."""
        most = self._worker.core.scheduler.limits.max_request_tokens
        if len(request.prompt) > most:
            raise RequestTooLong(
                f"request {request.request_id}: {len(request.prompt)} prompt tokens are more than "
                f"the {most} that fit"
            )
        return tuple(request.prompt)

    def _most(self, request: pb.GenerateRequest) -> int:
        """New tokens that it is given. One for which there is no place is refused where it runs."""
        room = self._worker.core.scheduler.limits.max_request_tokens - len(request.prompt)
        most = int(request.max_new_tokens)
        return min(most, max(1, room)) if request.as_many_as_fit else most

    async def _events(
        self, asked: Request, use: PoolUse, begin_by: float
    ) -> AsyncIterator[JobEvent | Reserved]:
        """What happens to a request, until it has finished. Cancels it if the caller goes."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[JobEvent | Reserved] = asyncio.Queue()

        def tell(event: JobEvent | Reserved) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        if use.handed_off:
            use.reserved = tell
        job = Job(asked, use, tell, begin_by, traces.traceparent())
        self._worker.submit(job)
        try:
            while True:
                event = await events.get()
                if isinstance(event, Failed):
                    if isinstance(event.error, Invalid | Overloaded):
                        raise event.error
                    raise Unavailable("the engine failed this request: ask again") from event.error
                yield event
                if isinstance(event, FinishEvent):
                    return
        finally:
            self._worker.cancel(job)


def _due(turn: pb.Turn, now: float) -> float:
    """When it is due, of requests that come now."""
    return due(now, turn.priority_ms, turn.aging)


def _begin_by(turn: pb.Turn, now: float) -> float:
    return now + 1e-3 * turn.drop_after_ms if turn.drop_after_ms else math.inf


def _started(event: Started) -> pb.GenerateReply.Started:
    use = event.use
    return pb.GenerateReply.Started(
        pool_tokens=use.pool_tokens,
        hand_off_tokens=use.hand_off_tokens,
        computed_tokens=event.computed_tokens,
        loaded_bytes=use.loaded_bytes,
        miss=use.miss,
    )


def _logprobs(event: TokenEvent) -> pb.Logprobs | None:
    said = event.logprobs
    if said is None:
        return None
    tokens, logprobs = zip(*said.top, strict=True) if said.top else ((), ())
    return pb.Logprobs(logprob=said.logprob, top_tokens=tokens, top_logprobs=logprobs)


def _hand_offs(request: pb.GenerateRequest) -> tuple[bytes, ...]:
    """One a block, and no block has less than a token."""
    handles, tokens = request.hand_off.handles, len(request.prompt)
    if len(handles) > tokens:
        raise Invalid(f"hand_off has {len(handles)} handles for {tokens} tokens of prompt")
    return tuple(handles)


def _salt(text: str) -> str:
    if len(text) > SALT_MAX:
        raise Invalid(f"cache_salt must be {SALT_MAX} characters at most")
    return text


def _checked(request_id: str) -> str:
    """Itself: conductors hear of it, and end a report that says what they do not take."""
    fits = 0 < len(request_id.encode()) <= REQUEST_ID_BYTES_MAX
    if not fits or not request_id.isprintable():
        raise Invalid(f"request_id must be 1 to {REQUEST_ID_BYTES_MAX} bytes of printable text")
    return request_id
