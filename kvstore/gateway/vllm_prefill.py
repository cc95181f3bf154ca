"""A prompt's prefill at a vLLM server, whose KV another follows and decodes. Both are told one name
that nobody else can guess: under it they meet in the pool, the one layer by layer behind the other.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import closing

from kvstore import traces
from kvstore.errors import KVStoreError
from kvstore.gateway import vllm
from kvstore.gateway.caller import Caller
from kvstore.gateway.events import Call, failure_of
from kvstore.gateway.run import Place
from kvstore.rpc.threads import begin_thread
from kvstore.wire.v1 import engine_pb2 as pb

OVER_SECONDS = 1.0  # what a prefill did is known about as soon as its request is decoded


class Prefill:
    """One under way, read by a thread of its own: as `kvstore.gateway.engines.Prefill`, of ours."""

    def __init__(
        self,
        place: Place,
        wanted: pb.PrefillRequest,
        adapter: str,
        caller: Caller,
        seconds: float,
    ) -> None:
        """Returns once the server has it. Raises what it refused by its type."""
        self.address, self._caller = place.address, caller
        self.hand_off = pb.HandOff(name=uuid.uuid4().hex, node_id=place.node_id)
        self._body = vllm.prefill_body(wanted, self.hand_off.name, adapter)
        self._adapter, self._headers = adapter, vllm.headers_of(place)
        self._tokens = len(wanted.prompt)
        if parent := traces.traceparent():
            self._headers[traces.KEY] = parent
        self._taken, self._over = threading.Event(), threading.Event()
        self._cached: int | None = None
        self._error: KVStoreError | None = None
        self._call = Call(place.address, seconds)
        try:
            begin_thread(self._read, f"prefill {place.address}", place.address)
        except KVStoreError:
            self._call.close()
            raise
        self._taken.wait()  # the server says something within so long, or has gone
        self._check()

    def begins(self, seconds: float) -> None:
        """Returns once it is thought to begin, so long from now, or is over: whoever follows it
        sooner has pages for it and waits. Raises what it failed by."""
        self._over.wait(seconds)
        self._check()

    def end(self, seconds: float = OVER_SECONDS) -> pb.PrefillReply.Done | None:
        """What was done; None where the server does not say. What is not over by then is to
        stop."""
        if not self._over.wait(seconds):
            self._call.cancel()
        return None if self._cached is None else pb.PrefillReply.Done(reused_tokens=self._cached)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            with (
                closing(self._call) as call,
                self._caller.waits_for(call),
                vllm.lacks(self._adapter),
            ):
                call.ask(vllm.PATH, self._body, self._headers)
                self._taken.set()
                for event in call.events():
                    if "error" in event:
                        raise failure_of(self.address, event["error"])
                    cached = vllm.cached_of(event)
                    if cached is not None and cached <= self._tokens:
                        self._cached = cached
        except KVStoreError as error:
            self._error = error
        finally:
            self._over.set()
            self._taken.set()
