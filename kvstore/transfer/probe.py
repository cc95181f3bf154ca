"""What a transport between two processes can do, and what is wrong with it.

A transport that was configured and does not work is an error, and never silently replaced; one that
is far slower than the best of the same link is a loud warning: both are most often a wrong setting.
Copies of mapped memory take no network, so none is held against them; they have to be no slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvstore.errors import Denied, KVStoreError, SessionEnded

SLOWER_MAX = 5.0  # times slower than the link's best network: beyond this, something is wrong
_CURES = {"tcp": "the node's data port (--data-port) has to be open to its callers"}
_HASTENS = {"shm": "this host is busy, or short of memory"}  # others take a network


@dataclass(frozen=True, slots=True)
class Probe:
    """Measured rates of one transport to one peer."""

    round_trip_seconds: float
    there_bytes_per_second: float
    back_bytes_per_second: float

    @property
    def slowest(self) -> float:
        """Bytes a second in the worse direction."""
        return min(self.there_bytes_per_second, self.back_bytes_per_second)


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a transport. An error says that nothing moves over it."""

    transport: str
    error: bool
    text: str


def judge(probes: Mapping[str, Probe | KVStoreError]) -> list[Complaint]:
    """Complaints about the configured transports of one link, by what probing each gave."""
    found: list[Complaint] = []
    worked = {name: one for name, one in probes.items() if isinstance(one, Probe)}
    networks = worked.keys() - _HASTENS.keys()
    best = max(networks, key=lambda name: worked[name].slowest, default="")
    for name, one in probes.items():
        if not isinstance(one, Probe):
            reached = isinstance(one, Denied | SessionEnded)  # whoever was told no got there
            cure = f"; {_CURES[name]}" if name in _CURES and not reached else ""
            found.append(Complaint(name, True, f"does not work: {one}{cure}"))
        elif best and worked[best].slowest > SLOWER_MAX * one.slowest:
            times = worked[best].slowest / one.slowest
            cure = _HASTENS.get(name, "see which network it takes")
            text = f"{times:.0f} times slower than {best}: {cure}"
            found.append(Complaint(name, False, text))
    return found
