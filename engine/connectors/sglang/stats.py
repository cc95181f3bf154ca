"""What a backend moved, in the form that SGLang charts: pages and GB/s of each call."""

from __future__ import annotations

import threading
from typing import Any

CALLS_MAX = 4_096  # kept for a reader that may never come


class Stats:
    """Counts while SGLang wants metrics, and does nothing else."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._moved: tuple[list[tuple[int, float]], ...] = ([], [])  # loads, stores

    def loaded(self, pages: int, page_bytes: int, seconds: float) -> None:
        self._add(0, pages, page_bytes, seconds)

    def stored(self, pages: int, page_bytes: int, seconds: float) -> None:
        self._add(1, pages, page_bytes, seconds)

    def take(self) -> Any:
        """A `StorageMetrics` of what came since the last call, or None."""
        if not self._wanted:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            (loaded, stored), self._moved = self._moved, ([], [])
        return StorageMetrics(
            prefetch_pgs=[pages for pages, _ in loaded],
            backup_pgs=[pages for pages, _ in stored],
            prefetch_bandwidth=[speed for _, speed in loaded],
            backup_bandwidth=[speed for _, speed in stored],
        )

    def _add(self, way: int, pages: int, page_bytes: int, seconds: float) -> None:
        if self._wanted and pages:
            with self._lock:
                if len(self._moved[way]) < CALLS_MAX:
                    speed = pages * page_bytes / 1e9 / max(seconds, 1e-9)
                    self._moved[way].append((pages, speed))
