"""One process's metrics, read over HTTP; how long and how late its answer may be is bounded."""

from __future__ import annotations

import http.client
import math
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from kvstore.dashboard.samples import SERIES_MAX, Sample
from kvstore.errors import ConfigError, Invalid, Unavailable
from kvstore.limits import MiB
from kvstore.rpc.http_answer import answer_of
from kvstore.rpc.metrics_port import PATH

ANSWER_SECONDS = 1.5
ANSWER_BYTES_MAX = 4 * MiB
_LABELS_MAX, _TEXT_MAX = 8, 256
_OURS = "moonpool"
_WHOSE = ": perhaps it answers clients there; give its --metrics, which its `ready` line names"
_GROWS = {"counter", "histogram", "summary"}


def checked(address: str) -> str:
    """HOST:PORT as it is. Raises `ConfigError`."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise ConfigError(f"{address!r}: write HOST:PORT, as a process's --metrics has it")
    return address


def read(address: str) -> list[Sample]:
    """Raises `Unavailable` where nobody answers in time, and `Invalid` for what are no metrics."""
    host, _, port = address.rpartition(":")
    calling = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=ANSWER_SECONDS)
    try:
        status, text = answer_of(calling, PATH, ANSWER_SECONDS, ANSWER_BYTES_MAX)
    except TimeoutError:
        raise Unavailable(f"{address}: no answer in {ANSWER_SECONDS:g} s", 1) from None
    except OSError as error:
        raise Unavailable(f"{address}: {error.strerror or error}", 1) from None
    except http.client.HTTPException:
        raise Unavailable(f"{address}: does not speak HTTP, as --metrics does", 1) from None
    if status != http.client.OK:
        hint = _WHOSE if status == http.client.NOT_FOUND else ""
        raise Invalid(f"{address}: answers {status} to GET {PATH}{hint}")
    if len(text) > ANSWER_BYTES_MAX:
        raise Invalid(f"{address}: says more than {ANSWER_BYTES_MAX} bytes")
    try:
        return list(_samples(text.decode()))
    except (ValueError, KeyError, IndexError) as error:
        raise Invalid(f"{address}: no metrics: {error}") from None


def _samples(text: str) -> Iterator[Sample]:
    count = 0
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(_OURS):
            continue  # vLLM's own
        for one in family.samples:
            count += 1
            if count > SERIES_MAX:
                raise ValueError(f"more than {SERIES_MAX} series")
            if len(one.labels) > _LABELS_MAX or any(
                len(v) > _TEXT_MAX for v in one.labels.values()
            ):
                raise ValueError(f"{one.name[:_TEXT_MAX]}: too many labels, or too long ones")
            float(one.labels.get("le", 0))  # a bucket's end
            if math.isfinite(one.value) and not one.name.endswith("_created"):
                grows = family.type in _GROWS
                yield Sample(one.name, frozenset(one.labels.items()), float(one.value), grows)
