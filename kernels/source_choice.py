"""Which host a prompt's prefix is fetched from, if it is: the one that has the most of it, and of
those the one whose link is free first. Where hosts have labels, also of each domain and rack."""

from __future__ import annotations

from typing import Any

from numba import njit

from .fleet import NONE, UNLABELLED
from .inner import BORROWED, inner


@njit(**BORROWED)
def choose_source(fleet: Any, found: Any) -> Any:
    """The host with the longest prefix, of several the one whose link is free first; and how many
    blocks it has. Where hosts have labels, those of each are left in `near`."""
    best, source, local, hosts = longest(found.local), NONE, found.local, fleet.hosts
    for host in range(len(local) if best else 0):
        if local[host] == best and (source == NONE or hosts[host].leaves < hosts[source].leaves):
            source = host
    if len(fleet.near):
        _choose_near(fleet, found)
    return best, source


@inner
def longest(prefixes: Any) -> Any:
    """The most blocks that one has. It stands alone, so that several are looked at at once."""
    best = 0
    for blocks in prefixes:
        best = max(best, blocks)
    return best


@inner
def _choose_near(fleet: Any, found: Any) -> None:
    near, local, hosts = fleet.near, found.local, fleet.hosts
    near[:] = NONE
    for host in range(len(local)):
        if local[host] == 0:
            continue
        domain, rack = hosts[host].domain, hosts[host].rack
        if domain != UNLABELLED:
            other = near[domain]
            if (
                other == NONE
                or local[host] > local[other]
                or (
                    local[host] == local[other]
                    and hosts[host].domain_leaves < hosts[other].domain_leaves
                )
            ):
                near[domain] = host
        if rack != UNLABELLED:
            other = near[rack]
            if (
                other == NONE
                or local[host] > local[other]
                or (local[host] == local[other] and hosts[host].leaves < hosts[other].leaves)
            ):
                near[rack] = host
