"""The counters of one server, as its /metrics has them, and what they rose by.

A server that starts again counts from nothing: what it counted before stays counted. What comes is
bounded in size and time, and a page that is no page of metrics is an error of that server alone.
"""

from __future__ import annotations

import http.client
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from kvstore.attach.asked import Asked
from kvstore.attach.kinds import KINDS, Kind, Sample
from kvstore.errors import ConfigError, Unavailable
from kvstore.limits import ATTACH_BODY_BYTES_MAX, ATTACH_CALL_SECONDS
from kvstore.rpc.http_answer import answer_of

_HINTS = {http.client.NOT_FOUND: "; SGLang has it with --enable-metrics"}
_NEVER_LESS = ("queries", "hits")
_WHOLE = {one.name for one in fields(Asked) if "seconds" not in one.name}


@dataclass(frozen=True, slots=True)
class Page:
    """What a server said at one moment."""

    kind: Kind
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
        again = any(now[name] < self._last.get(name, 0.0) for name in _NEVER_LESS)
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
    """A page of Prometheus' text format. Raises Unavailable for one of no kind that is known."""
    found: dict[Sample, float] = {}
    kind = None
    try:
        for family in _families(text):
            kind = kind or _kind(family.name)
            for sample in family.samples:
                if kind and math.isfinite(sample.value) and sample.value >= 0:
                    for one in _WANTED[kind].get(sample.name, ()):
                        if one.counts(sample.labels):
                            found[one] = found.get(one, 0.0) + float(sample.value)
    except (ValueError, KeyError, IndexError) as error:
        said = f"what {url}/metrics says is not in Prometheus' text format: {error}"
        raise Unavailable(said[:300]) from None
    if kind is None:
        known = " nor ".join(f"of {one.name}" for one in KINDS)
        raise Unavailable(
            f"{url}/metrics has no counters {known}; SGLang has them with --enable-metrics"
        )
    for name in kind.needed:
        if kind.counters[name] not in found:
            raise Unavailable(
                f"{url}/metrics has no {kind.counters[name].name}: this {kind.name} server does not"
                " cache prefixes, or keeps no statistics"
            )
    counters = {name: found.get(one, 0.0) for name, one in kind.counters.items()}
    return Page(kind, counters, round(sum(found.get(one, 0.0) for one in kind.running)))


def _kind(counter: str) -> Kind | None:
    return next((one for one in KINDS if counter.startswith(one.prefix)), None)


def _wanted(kind: Kind) -> dict[str, set[Sample]]:
    found: dict[str, set[Sample]] = {}
    for one in (*kind.counters.values(), *kind.running):
        found.setdefault(one.name, set()).add(one)
    return found


_WANTED = {kind: _wanted(kind) for kind in KINDS}


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
    try:
        calling = kind(parts.hostname or "", parts.port, timeout=ATTACH_CALL_SECONDS)
        path = f"{parts.path.rstrip('/')}/metrics"
        status, body = answer_of(calling, path, ATTACH_CALL_SECONDS, ATTACH_BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{url}/metrics cannot be read: {error or type(error).__name__}"
        ) from None
    if status != http.client.OK:
        raise Unavailable(f"{url}/metrics answers {status}{_HINTS.get(status, '')}")
    if len(body) > ATTACH_BODY_BYTES_MAX:
        raise Unavailable(f"{url}/metrics has more than {ATTACH_BODY_BYTES_MAX:,} bytes")
    return body.decode(errors="replace")
