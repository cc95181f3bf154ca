"""How fast other nodes were lately, and from when on one of them is late.

Pure. What is kept of each is its last transfers as seconds a byte, each with some bytes added for
what asking takes, so that small and large ones compare.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from kvstore.limits import NODES_MAX, MiB

KEPT = 64  # transfers of each node
KNOWN_MIN = 8  # of fewer nothing is concluded
QUANTILE = 0.95  # one in twenty is late when all is well, and is asked for twice
LATE_SECONDS_MIN = 0.05  # sooner a second question costs more than it can gain
UNKNOWN_SECONDS_A_BYTE = 1 / (100 * MiB)  # of a node that has brought little so far
_ASKING_BYTES = MiB // 4


class Pace:
    """Of each node by its id; those that brought nothing for the longest time are forgotten."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, node_id: str, size_bytes: int, seconds: float) -> None:
        """A transfer was done."""
        took = max(seconds, 1e-6) / (size_bytes + _ASKING_BYTES)
        self._kept.setdefault(node_id, deque(maxlen=KEPT)).append(took)
        self._kept.move_to_end(node_id)
        if len(self._kept) > NODES_MAX:
            self._kept.popitem(last=False)

    def late_after(self, node_id: str, size_bytes: int) -> float:
        """Seconds from which on another node may as well be asked for the same."""
        kept = sorted(self._kept.get(node_id, ()))
        usual = UNKNOWN_SECONDS_A_BYTE
        if len(kept) >= KNOWN_MIN:
            usual = kept[min(len(kept) - 1, int(QUANTILE * len(kept)))]
        return max(LATE_SECONDS_MIN, usual * (size_bytes + _ASKING_BYTES))

    def rates(self) -> dict[str, float]:
        """Bytes a second of each, as it was in the middle."""
        return {name: 1 / sorted(kept)[len(kept) // 2] for name, kept in self._kept.items()}
