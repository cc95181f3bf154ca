"""One request as one trace over all processes it passes: OpenTelemetry's, by W3C trace context.

Where $OTEL_EXPORTER_OTLP_ENDPOINT says who collects spans, a process sends its own there, as the
other variables of OpenTelemetry say (sampling, headers). Else nothing is made, and nothing is paid
for it. A trace begins at the gateway, or with whoever calls it; nobody else begins one, so what
processes do for themselves is in none. Spans have counts of tokens and blocks, and no text, tenant
or caller.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from kvstore.errors import ConfigError

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
KEY = "traceparent"  # of headers and metadata
PARENT_BYTES = 55  # of a W3C traceparent, version 00: 00-TRACE-SPAN-FLAGS
Said: TypeAlias = str | int | float

_tracer: Any = None  # opentelemetry has types, and is an extra


def begin(process: str) -> None:
    """Once, before the process opens a channel. Raises `ConfigError` where spans are wanted and
    cannot be sent."""
    global _tracer
    if not os.environ.get(ENDPOINT) or _tracer is not None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        text = f"{ENDPOINT} is set, and there is no {error.name} here"
        raise ConfigError(f"{text}: pip install 'moonpool[traces]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": f"moonpool-{process}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = provider.get_tracer("moonpool")


def on() -> bool:
    return _tracer is not None


def traceparent() -> str:
    """Of the span that this thread or task is in; empty where there is none."""
    if _tracer is None:
        return ""
    from opentelemetry import trace

    at = trace.get_current_span().get_span_context()
    if not at.is_valid:
        return ""
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


@contextmanager
def root(name: str, parent: str, **said: Said) -> Iterator[Any]:
    """A span that begins a trace, or goes on with the one of whoever calls. None while nothing is
    traced, else what `tell` takes."""
    if _tracer is None:
        yield None
        return
    with _tracer.start_as_current_span(name, context=_context(parent), attributes=said) as span:
        yield span


@contextmanager
def span(name: str, parent: str = "", **said: Said) -> Iterator[None]:
    """A part of a trace: of the one that `parent` is of, else of the one that this thread or task
    is in. Where there is neither nothing is made."""
    if _tracer is None or not (parent or traceparent()):
        yield
        return
    context = _context(parent) if parent else None
    with _tracer.start_as_current_span(name, context=context, attributes=said):
        yield


@contextmanager
def within(parent: str) -> Iterator[None]:
    """What this thread calls meanwhile is of that span's trace."""
    if _tracer is None or not parent:
        yield
        return
    from opentelemetry import context

    token = context.attach(_context(parent))
    try:
        yield
    finally:
        context.detach(token)


def told(name: str, parent: str, began: float, ended: float) -> None:
    """A span that is over already: moments of the monotonic clock."""
    if _tracer is None or not parent:
        return
    zero = time.time_ns() - time.monotonic_ns()
    made = _tracer.start_span(name, context=_context(parent), start_time=zero + round(1e9 * began))
    made.end(zero + round(1e9 * ended))


def tell(span: Any, **said: Said) -> None:
    """Of a span that `root` gave."""
    if span is not None:
        span.set_attributes(said)


def _context(parent: str) -> Any:
    """What `parent` says; what is no traceparent says nothing."""
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {KEY: parent[:PARENT_BYTES]}
    return TraceContextTextMapPropagator().extract(carrier, context=context.Context())
