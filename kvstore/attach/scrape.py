"""The counters of one server, as its /metrics has them, and what they rose by.

A server that starts again counts from nothing: what it counted before stays counted. What comes is
bounded in size and time, and a page that is no page of metrics is an error of that server alone.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from kvstore.attach.reasons import Asked
from kvstore.errors import ConfigError, Unavailable
from kvstore.limits import ATTACH_BODY_BYTES_MAX, ATTACH_CALL_SECONDS, KiB

# Of vLLM; each is a sum over labels.
COUNTERS = {
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
    "pool_queries": "vllm:external_prefix_cache_queries_total",
    "pool_hits": "vllm:external_prefix_cache_hits_total",
    "generated": "vllm:generation_tokens_total",
    "prompts": "vllm:time_to_first_token_seconds_count",
    "first_token_seconds": "vllm:time_to_first_token_seconds_sum",
    "prefill_seconds": "vllm:request_prefill_time_seconds_sum",
    "prefills": "vllm:request_prefill_time_seconds_count",
    "prefilled": "vllm:request_prefill_kv_computed_tokens_sum",
    "preempted": "vllm:num_preemptions_total",
}
_NEEDED = ("queries", "hits")
_RUNNING = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_WHOLE = {one.name for one in fields(Asked) if "seconds" not in one.name}
assert COUNTERS.keys() == {one.name for one in fields(Asked)}


@dataclass(frozen=True, slots=True)
class Page:
    """What a server said at one moment."""

    counters: dict[str, float]  # by the names that `Asked` has
    running: int  # requests, those that wait among them


class Counted:
    """What one server's counters rose by since `begin`."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._sums: dict[str, float] = {}
        self.restarts = 0

    def begin(self, page: Page) -> None:
        self._last, self._sums, self.restarts = page.counters, {}, 0

    def take(self, page: Page) -> Asked:
        """What they rose by since the page before."""
        now = page.counters
        again = any(now[name] < self._last.get(name, 0.0) for name in _NEEDED)
        self.restarts += again
        rose = {
            name: value if again else max(0.0, value - self._last.get(name, 0.0))
            for name, value in now.items()
        }
        for name, value in rose.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._last = now
        return _asked(rose)

    @property
    def asked(self) -> Asked:
        return _asked(self._sums)


def _asked(rose: dict[str, float]) -> Asked:
    every = {name: round(one) if name in _WHOLE else one for name, one in rose.items()}
    return Asked(**every)  # type: ignore[arg-type]  # those of _WHOLE are whole


def read(url: str) -> Page:
    """What the server at an address says now. Raises Unavailable."""
    return parsed(_fetched(url), url)


def check_url(url: str) -> None:
    """Raises ConfigError for what is no address of a server."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"--engine {url[:256]}: wants an address like http://127.0.0.1:8000")


def parsed(text: str, url: str) -> Page:
    """A page of Prometheus' text format. Raises Unavailable for one that is not vLLM's."""
    sums: dict[str, float] = {}
    wanted = {*COUNTERS.values(), *_RUNNING}
    try:
        for family in _families(text):
            for sample in family.samples:
                if sample.name in wanted and math.isfinite(sample.value) and sample.value >= 0:
                    sums[sample.name] = sums.get(sample.name, 0.0) + float(sample.value)
    except (ValueError, KeyError, IndexError) as error:
        said = f"what {url}/metrics says is not in Prometheus' text format: {error}"
        raise Unavailable(said[:300]) from None
    for name in _NEEDED:
        if COUNTERS[name] not in sums:
            raise Unavailable(
                f"{url}/metrics has no {COUNTERS[name]}: it is no vLLM server that caches prefixes"
                " and keeps statistics"
            )
    counters = {name: sums.get(there, 0.0) for name, there in COUNTERS.items()}
    return Page(counters, round(sum(sums.get(name, 0.0) for name in _RUNNING)))


def _families(text: str) -> Iterable[Any]:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        said = f"/metrics is read by prometheus_client, which is not installed ({error})"
        raise ConfigError(f"{said}: `pip install 'moonpool[attach]'`") from error
    families: Iterable[Any] = text_string_to_metric_families(text)
    return families


def _fetched(url: str) -> str:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    deadline = time.monotonic() + ATTACH_CALL_SECONDS
    try:
        with closing(kind(parts.hostname or "", parts.port, timeout=ATTACH_CALL_SECONDS)) as one:
            one.request("GET", f"{parts.path.rstrip('/')}/metrics")
            reply = one.getresponse()
            if reply.status != http.client.OK:
                raise Unavailable(f"{url}/metrics answers {reply.status}")
            body = bytearray()
            while part := reply.read1(64 * KiB):
                body += part
                if len(body) > ATTACH_BODY_BYTES_MAX:
                    most = f"{ATTACH_BODY_BYTES_MAX:,}"
                    raise Unavailable(f"{url}/metrics has more than {most} bytes")
                if time.monotonic() > deadline:
                    raise Unavailable(f"{url}/metrics takes more than {ATTACH_CALL_SECONDS:g} s")
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{url}/metrics cannot be read: {error or type(error).__name__}"
        ) from None
    return body.decode(errors="replace")
