"""What a node holds at the moment, for whoever reads its metrics."""

from __future__ import annotations

from collections.abc import Mapping

from kvstore.core.slabs import Slabs
from kvstore.node.sessions import Sessions
from kvstore.node.store import Store
from kvstore.telemetry import Telemetry


def look_up(
    telemetry: Telemetry, store: Store, sessions: Sessions, tiers: Mapping[str, Slabs]
) -> None:
    """`tiers` has the slabs of each that there is."""
    shares, index = store.blocks.shares, store.blocks.index

    def used() -> dict[str, float]:
        return {name: float(sum(shares.used(one.tier).values())) for name, one in tiers.items()}

    def room() -> dict[str, float]:
        return {name: float(one.usable_bytes) for name, one in tiers.items()}

    telemetry.look_up("tier_bytes", used)
    telemetry.look_up("tier_capacity_bytes", room)
    telemetry.look_up("blocks", lambda: float(len(index)))
    telemetry.look_up("windows", lambda: float(len(store.windows)))
    telemetry.look_up("pins", lambda: float(len(store.pins)))
    telemetry.look_up("open_sessions", lambda: float(len(sessions)))
