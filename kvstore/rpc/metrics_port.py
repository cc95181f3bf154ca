"""`/metrics` of a process: its telemetry as Prometheus reads it, over HTTP, and nothing else.

It knows one request, `GET /metrics`, and one answer a connection. Connections are bounded in count,
bytes and seconds, so that nobody who can reach the port takes more of the process than that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder

from kvstore.config import TlsConfig
from kvstore.errors import ConfigError
from kvstore.limits import METRICS_CALLS_MAX, METRICS_HEAD_BYTES_MAX, METRICS_SECONDS_MAX
from kvstore.rpc.listening import listening
from kvstore.rpc.tls import valid_between
from kvstore.telemetry import BY_PROCESS, Kind, Looked, Metric, Telemetry

PATH = "/metrics"


class MetricsPort:
    """One listener, on the event loop that the telemetry is added to."""

    def __init__(self, telemetry: Telemetry, tls: TlsConfig | None = None) -> None:
        """`tls`: what the process shows to others, if it shows any."""
        process, since = psutil.Process(), time.monotonic()
        kind = next(name for name, listed in BY_PROCESS.items() if listed is telemetry.listed)
        telemetry.look_up("process_info", lambda: {kind: 1.0})
        telemetry.look_up("resident_bytes", lambda: float(process.memory_info().rss))
        telemetry.look_up("uptime_seconds", lambda: time.monotonic() - since)
        telemetry.look_up("certificate_left_seconds", lambda: _left_seconds(tls))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(telemetry))
        self._calls: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def listen(self, address: str) -> None:
        """HOST:PORT; port 0 takes a free one. Raises `ConfigError`."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ConfigError(f"--metrics = {address!r}: write HOST:PORT, like 127.0.0.1:9401")
        try:
            self._server = await asyncio.start_server(
                self._answer, sock=listening(host, int(port)), limit=METRICS_HEAD_BYTES_MAX
            )
        except OSError as error:
            raise ConfigError(f"--metrics = {address!r}: {error.strerror or error}") from None
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None, "each connection has a task of its own"
        self._calls.add(call)
        try:
            if len(self._calls) <= METRICS_CALLS_MAX:
                async with asyncio.timeout(METRICS_SECONDS_MAX):
                    writer.write(await self._reply(reader))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.CancelledError):
            # Whoever asked went away, or never did, or does not read; or this process is to end.
            # What was not sent goes with its connection: closing one would wait for its reader.
            writer.transport.abort()
        finally:
            self._calls.discard(call)
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError:
            return _reply("431 Request Header Fields Too Large", "text/plain", b"too long\n")
        first, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if path != PATH:
            return _reply("404 Not Found", "text/plain", b"there is /metrics\n")
        if method != "GET":
            return _reply("405 Method Not Allowed", "text/plain", b"GET it\n")
        try:
            encode, kind = choose_encoder(_accepted(fields))
        except (TypeError, ValueError):  # it names a version that is none
            encode, kind = choose_encoder("")
        return _reply("200 OK", kind, encode(self._registry))


def _left_seconds(tls: TlsConfig | None) -> Looked:
    """By the wall clock, as whoever is shown it goes by. Nothing where it cannot be read."""
    if tls is None:
        return {}
    try:
        return valid_between(tls)[1] - time.time()
    except (ConfigError, ModuleNotFoundError):  # being renewed; or a client's environment
        return {}


def _accepted(fields: list[str]) -> str:
    for field in fields:
        name, _, value = field.partition(":")
        if name.strip().lower() == "accept":
            return value.strip()
    return ""


def _reply(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


class _Collector:
    """Telemetry as the library that writes Prometheus's formats wants it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterator[Any]:
        for metric in self._telemetry.listed.values():
            yield _family(metric, self._telemetry)


def _family(metric: Metric, telemetry: Telemetry) -> Any:
    name, labels = metric.exposed, [metric.label] if metric.label else []
    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(name, metric.text, labels=labels)
        for label, times in telemetry.times(metric.name).items():
            ends = [(_end(end), float(count)) for end, count in times.at_most()]
            family.add_metric([label] * len(labels), ends, times.total)
        return family
    one: Any = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    counted = one(name, metric.text, labels=labels)
    for label, value in telemetry.values(metric.name).items():
        counted.add_metric([label] * len(labels), value)
    return counted


def _end(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else repr(float(seconds))
