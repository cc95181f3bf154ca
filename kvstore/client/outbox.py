"""What a conductor is yet to be told of an engine, as messages within the bounds of the protocol.

A stream begins with who the engine is, all that waits and runs there and what it holds itself, and
goes on with what happens. While no stream is open nothing piles up: only what is there now is
remembered. Pure but for its lock: the engine's threads fill it, a stream's empties it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvstore.client.own_blocks import OwnBlocks
from kvstore.core.cost import BATCH_MAX
from kvstore.limits import (
    ENGINE_ADAPTERS_MAX,
    LABEL_BYTES_MAX,
    REPORT_MEASURED_MAX,
    REPORT_REQUESTS_MAX,
    RPC_KEYS_MAX,
)
from kvstore.wire.v1 import conductor_pb2 as pb

MESSAGES_MAX = 256  # that wait to be sent: beyond, the stream is begun anew, which says less
HASHED_MAX = 32  # of which so many may be there for hashes alone: prompts beyond are told without
# In one message these count in this order, whichever was said first.
_ORDER = ("accepted", "began", "ended", "decoding", "given_up")
_GONE = {"ended", "given_up"}


@dataclass(slots=True)
class _Here:
    """A prompt that waits, or is being prefilled."""

    accepted: pb.ReportRequest.Accepted
    runs: bool = False


class Outbox:
    """For one conductor."""

    def __init__(self, engine: pb.ReportRequest.Engine) -> None:
        self._engine = pb.ReportRequest.Engine()
        self._engine.CopyFrom(engine)
        self._load = pb.ReportRequest.Load()
        self._own = OwnBlocks()
        self._here: dict[str, _Here] = {}
        self._adapters: dict[str, bytes] = {}  # weights by name, the last one last
        self._open, self._stream = False, 0
        self._messages: deque[pb.ReportRequest] = deque()
        self._last: dict[str, int] = {}  # of the newest message: ids, and how late in order
        self._hashes = 0  # of its prompts
        self._changed = threading.Condition()

    def on_node(self, node_id: str) -> None:
        """The node whose memory is the engine's own, from the next stream on."""
        with self._changed:
            self._engine.node_id = node_id

    def take_role(self, role: pb.Role) -> None:
        """The engine does something else from now on: all is said anew, on another stream."""
        with self._changed:
            self._engine.elastic = role
            self._open = False
            self._renew()
            self._changed.notify_all()

    def begin(self) -> int:
        """A stream begins; what it is to say first is in the box. Its number, for `next`."""
        with self._changed:
            self._open, self._stream = True, self._stream + 1
            self._renew()
            self._own.begin()
            self._message().engine.CopyFrom(self._engine)
            self._message().load.CopyFrom(self._load)
            if self._adapters:
                self._tell_of(self._adapters)
            for request, here in self._here.items():
                self._accept(here.accepted)
                if here.runs:
                    self._say("began", request)
            return self._stream

    def end(self) -> None:
        """The stream is over: whoever waits for its next message is told so."""
        with self._changed:
            self._open = False
            self._renew()
            self._changed.notify_all()

    def next(self, stream: int, seconds: float) -> pb.ReportRequest | None:
        """The next message, an empty one if nothing happens for so long; None where the stream is
        over, or another has begun."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._messages or self._own or not self._is_open(stream), seconds
            )
            if not self._is_open(stream):
                return None
            message = self._messages.popleft() if self._messages else pb.ReportRequest()
            if not self._messages:
                self._last = {}
            self._own.tell(message)
            return message

    def adapter(self, name: str, weights: bytes) -> None:
        """It has loaded an adapter. What no conductor would take for a name is left out."""
        if not name.isprintable() or not 0 < len(name.encode()) <= LABEL_BYTES_MAX:
            return
        with self._changed:
            if self._adapters.pop(name, None) == weights:
                self._adapters[name] = weights
                return
            self._adapters[name] = weights
            if len(self._adapters) > ENGINE_ADAPTERS_MAX:
                del self._adapters[next(iter(self._adapters))]
            if self._open:
                self._tell_of({name: weights})
                self._changed.notify_all()

    def own(self, dropped: Sequence[bytes], held: Sequence[bytes]) -> None:
        """What the engine holds in memory of its own has changed so, in this order."""
        with self._changed:
            self._own.drop(dropped)
            self._own.hold(held)
            self._changed.notify_all()

    def forget_own(self) -> None:
        """It holds nothing there any more, or nobody knows what."""
        with self._changed:
            self._own.clear()
            self._changed.notify_all()

    def accept(self, request: str, tokens: int, prefix: int, hashes: Sequence[bytes]) -> None:
        """A prompt has come and waits; of its tokens `prefix` need not be computed."""
        accepted = pb.ReportRequest.Accepted(
            request_id=request,
            tokens=tokens,
            prefix_tokens=min(prefix, tokens - 1),
            hashes=hashes[:RPC_KEYS_MAX],
        )
        with self._changed:
            self._here[request] = _Here(accepted)
            if self._open:
                self._accept(accepted)
                self._changed.notify_all()

    def became(self, what: str, request: str) -> None:
        """`began`, `ended`, `decoding` or `given_up`."""
        with self._changed:
            here = self._here.get(request)
            if here is not None:
                here.runs = here.runs or what == "began"
            if what in _GONE:
                self._here.pop(request, None)
            if self._open:
                self._say(what, request)
                self._changed.notify_all()

    def load(self, batch: int, context_tokens: int) -> None:
        """What it decodes now."""
        with self._changed:
            self._load = pb.ReportRequest.Load(batch=batch, context_tokens=context_tokens)
            if self._open:
                self._message().load.CopyFrom(self._load)
                self._changed.notify_all()

    def over(self, output_tokens: int) -> None:
        """A request was decoded to its end."""
        with self._changed:
            if not self._open:
                return
            full = self._message().over.sequences >= BATCH_MAX
            over = (self._new() if full else self._message()).over
            over.sequences += 1
            over.output_tokens += output_tokens
            self._changed.notify_all()

    def prefilled(self, new_tokens: int, prefix_tokens: int, seconds: float) -> None:
        """A prefill that nothing else ran beside took so long."""
        with self._changed:
            if self._open and len(self._message().prefills) < REPORT_MEASURED_MAX:
                self._message().prefills.add(
                    new_tokens=new_tokens, prefix_tokens=prefix_tokens, seconds=seconds
                )

    def stepped(self, batch: int, context_tokens: int, seconds: float) -> None:
        """A decode step that nothing else ran beside took so long."""
        with self._changed:
            if self._open and len(self._message().steps) < REPORT_MEASURED_MAX:
                self._message().steps.add(
                    batch=batch, context_tokens=context_tokens, seconds=seconds
                )

    def _tell_of(self, adapters: Mapping[str, bytes]) -> None:
        message = self._message()
        if len(message.adapters) + len(adapters) > ENGINE_ADAPTERS_MAX:
            message = self._new()
        for name, weights in adapters.items():
            message.adapters.add(name=name, weights=weights)

    def _is_open(self, stream: int) -> bool:
        return self._open and stream == self._stream

    def _accept(self, accepted: pb.ReportRequest.Accepted) -> None:
        message = self._for("accepted", accepted.request_id)
        if self._hashes + len(accepted.hashes) > RPC_KEYS_MAX:
            if len(self._messages) < HASHED_MAX:
                message = self._new()
            else:  # it counts as load, and nobody counts on its blocks
                accepted = pb.ReportRequest.Accepted(
                    request_id=accepted.request_id,
                    tokens=accepted.tokens,
                    prefix_tokens=accepted.prefix_tokens,
                )
        self._hashes += len(accepted.hashes)
        self._last[accepted.request_id] = 0
        message.accepted.append(accepted)

    def _say(self, what: str, request: str) -> None:
        message = self._for(what, request)
        self._last[request] = _ORDER.index(what)
        getattr(message, what).append(request)

    def _for(self, what: str, request: str) -> pb.ReportRequest:
        """The newest message, or another where this would be said too early or too much in it."""
        message = self._message()
        early = self._last.get(request, 0) > _ORDER.index(what)
        full = sum(len(getattr(message, one)) for one in _ORDER) >= REPORT_REQUESTS_MAX
        return self._new() if early or full else message

    def _message(self) -> pb.ReportRequest:
        return self._messages[-1] if self._messages else self._new()

    def _new(self) -> pb.ReportRequest:
        if len(self._messages) >= MESSAGES_MAX:
            self._open = False  # who empties it sees that, and begins anew
        self._messages.append(pb.ReportRequest())
        self._last, self._hashes = {}, 0
        return self._messages[-1]

    def _renew(self) -> None:
        self._messages.clear()
        self._last = {}
