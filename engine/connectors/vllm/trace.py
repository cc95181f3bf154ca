"""What happened when, as JSON lines: to see a decode engine load layers while prefill stores them.

Times are the host's monotonic seconds, so lines of several processes of one host can be merged.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any


class Trace:
    """Appends to a file, or does nothing where none is named."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1) if path else None  # noqa: SIM115
        self._lock = threading.Lock()

    def event(self, what: str, request: str, **facts: Any) -> None:
        if self._file is None:
            return
        line = {"seconds": time.monotonic(), "what": what, "request": request, **facts}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
