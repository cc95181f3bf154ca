"""Reads the metrics of some processes every other second, and keeps what the charts show of them.

A process that does not answer is shown as such; the others' figures go on without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvstore.dashboard.history import History
from kvstore.dashboard.samples import Sample, Samples
from kvstore.dashboard.scrape import checked, read
from kvstore.errors import ConfigError, Invalid, KVStoreError, Unavailable
from kvstore.telemetry import BY_PROCESS, CONNECTOR, PROCESS, Kind

TICK_SECONDS = 2.0
WATCHED_MAX = 128  # addresses; more are for Prometheus
_READERS = 16  # threads
_INFO = PROCESS[0]
_OF_VLLM = {one.exposed for one in CONNECTOR.values()}
_HOLDS = {
    name: metric
    for listed in BY_PROCESS.values()
    for name, metric in listed.items()
    if metric.kind is Kind.GAUGE and metric is not _INFO
}


class Watch:
    """Over HOST:PORT of each process's `--metrics`."""

    def __init__(
        self, addresses: Sequence[str], reads: Callable[[str], list[Sample]] = read
    ) -> None:
        if len(addresses) > WATCHED_MAX:
            raise ConfigError(f"--watch: {len(addresses)} addresses, at most {WATCHED_MAX}")
        self._addresses, self._reads = [checked(one) for one in dict.fromkeys(addresses)], reads
        self.samples, self.history = Samples(), History()
        self._silent: dict[str, str] = dict.fromkeys(self._addresses, "not read yet")

    async def keep(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(_READERS, "metrics")
        try:
            while True:
                began = loop.time()
                asked = [loop.run_in_executor(threads, self._read, one) for one in self._addresses]
                self.take(time.time(), loop.time(), await asyncio.gather(*asked))
                await asyncio.sleep(max(0.0, began + TICK_SECONDS - loop.time()))
        finally:
            # Not waited for: this loop may be who is to answer them.
            threads.shutdown(wait=False, cancel_futures=True)

    def take(
        self, at: float, now: float, read: Sequence[tuple[str, list[Sample] | KVStoreError]]
    ) -> None:
        """What came of reading each at one moment: `at` of the calendar, `now` of the clock that
        rates are taken by."""
        said = {address: of for address, of in read if not isinstance(of, KVStoreError)}
        self._silent = {address: str(of) for address, of in read if isinstance(of, KVStoreError)}
        try:
            self.samples.take(now, said)
        except Invalid as error:
            self._silent |= dict.fromkeys(said, str(error))
        self.history.take(at, self.samples)

    def processes(self) -> list[dict[str, Any]]:
        """As JSON: every address, what process it is, what is wrong with it, if anything, and what
        it holds."""
        kinds = self.samples.of_each(_INFO.exposed)
        held = {name: self.samples.of_each(metric.exposed) for name, metric in _HOLDS.items()}
        found: list[dict[str, Any]] = []
        for address in self._addresses:
            kind = next((dict(one).get(_INFO.label, "") for one in kinds.get(address, ())), "")
            if not kind and self.samples.names(address) & _OF_VLLM:
                kind = "vllm"
            holds = {
                f"{name} {dict(labels).get(_HOLDS[name].label, '')}".strip(): value
                for name, of in held.items()
                for labels, value in of.get(address, {}).items()
            }
            silent = self._silent.get(address, "")
            found.append({"address": address, "process": kind, "silent": silent, "holds": holds})
        return found

    def _read(self, address: str) -> tuple[str, list[Sample] | KVStoreError]:
        try:
            return address, self._reads(address)
        except KVStoreError as error:
            return address, error
        except Exception as error:  # nobody foresaw it: the others are shown all the same
            return address, Unavailable(f"{address}: {type(error).__name__}: {error}", 1)
