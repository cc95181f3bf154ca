"""What went between the hosts of a simulated cluster, and how much of what their links can carry
that is.

A link carries one byte after another each way. KV is handed over from hosts that prefill to hosts
that decode; it is fetched from any host that keeps some.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.kernels.fleet import DOMAIN, FAR, LINK
from kvstore.kernels.sim_world import World


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes of KV that went from host to host, fetched or handed over."""

    link: float  # over the links of hosts of one rack
    domain: float  # within an NVLink domain
    far: float  # between racks

    @classmethod
    def of(cls, world: World) -> Carried:
        return cls(*(float(world.carried[way]) for way in (LINK, DOMAIN, FAR)))

    @property
    def all(self) -> float:
        return self.link + self.domain + self.far


def busy(world: World, prefills_s: float, decodes_s: float) -> float:
    """Share of those seconds, of all hosts together, in which links carry, one way, at the hosts of
    the role that have the most to carry for their number. NVLink is not counted: it is another."""
    carried, place = Carried.of(world), world.places[0]
    far_seconds = max(place["link_seconds"], place["far_seconds"])
    seconds = float(carried.link * place["link_seconds"] + carried.far * far_seconds)
    if not seconds:
        return 0.0
    block_bytes = world.setting.block_tokens * world.setting.token_bytes
    fetched = float(world.requests["fetched"].sum()) * block_bytes
    handed = seconds * max(0.0, 1 - fetched / carried.all)
    givers_s = prefills_s + (decodes_s if world.setting.holds else 0.0)
    shares = ((handed, prefills_s), (handed, decodes_s), (seconds, givers_s))
    return min(1.0, max(part / whole for part, whole in shares if whole))
