"""What a node holds at the moment, for whoever reads its metrics."""

from __future__ import annotations

from collections.abc import Mapping

from kvstore.core.lifecycle import Tier
from kvstore.node.sessions import Sessions
from kvstore.node.store import Store
from kvstore.telemetry import Telemetry

_TIERS = {"hbm": Tier.HBM, "dram": Tier.DRAM, "ssd": Tier.SSD}


def look_up(
    telemetry: Telemetry, store: Store, sessions: Sessions, capacities: Mapping[str, int]
) -> None:
    """`capacities` has the bytes of each tier that there is."""
    shares, index = store.blocks.shares, store.blocks.index

    def used() -> dict[str, float]:
        return {name: float(sum(shares.used(_TIERS[name]).values())) for name in capacities}

    telemetry.look_up("tier_bytes", used)
    telemetry.look_up("tier_capacity_bytes", lambda: dict(capacities))
    telemetry.look_up("blocks", lambda: float(len(index)))
    telemetry.look_up("windows", lambda: float(len(store.windows)))
    telemetry.look_up("pins", lambda: float(len(store.pins)))
    telemetry.look_up("open_sessions", lambda: float(len(sessions)))
