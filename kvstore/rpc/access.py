"""Which roles may call which method: the one table. A method without a row is denied to everybody.

A role is what a certificate says of its holder. A client acts for the tenant of its bearer token, a
node for the tenant that it names. Without TLS a process serves loopback alone, and whoever calls
there may do all that the table knows.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Role(enum.Enum):
    NODE = "node"
    CONDUCTOR = "conductor"
    CLIENT = "client"
    OPEN = "open"  # of this host, at a server without TLS


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may call a method. Clients show a token, unless a certificate is `enough`."""

    roles: frozenset[Role]
    admin: bool = False  # clients: with a token of the admin scope
    enough: bool = False


TENANTS = Rule(frozenset({Role.CLIENT, Role.NODE}))
PEERS = Rule(frozenset({Role.NODE, Role.CONDUCTOR}))
NODES = Rule(frozenset({Role.NODE}))
OPERATORS = Rule(frozenset({Role.CLIENT, Role.NODE}), admin=True)
# What a conductor decides by itself: it acts for no tenant, and names the one that it means.
PLANNERS = Rule(frozenset({Role.CLIENT, Role.NODE, Role.CONDUCTOR}), admin=True)
ANYBODY = Rule(frozenset(Role), enough=True)

_TABLE: Mapping[str, Mapping[str, Rule]] = {
    "moonpool.v1.KV": {
        "Register": TENANTS,
        "Session": TENANTS,
        "Match": TENANTS,
        "Exists": TENANTS,
        "Remove": TENANTS,
        "Put": TENANTS,
        "Get": TENANTS,
        "Reserve": TENANTS,
        "Write": TENANTS,
        "Seal": TENANTS,
        "Abort": TENANTS,
        "Open": TENANTS,
        "Read": TENANTS,
        "Close": TENANTS,
        "Pin": TENANTS,
        "Renew": TENANTS,
        "Unpin": TENANTS,
        "Quarantine": TENANTS,
    },
    "moonpool.v1.Directory": {
        "Follow": PEERS,
        "Holders": PEERS,
        "Take": NODES,
        "Drop": NODES,
    },
    "moonpool.v1.Conductor": {
        "Match": TENANTS,
        "Holders": PEERS,
        "Schedule": TENANTS,
        "GiveUp": TENANTS,
        "Report": TENANTS,
        "Explain": TENANTS,
        "Balance": TENANTS,
        "Crews": TENANTS,
    },
    "moonpool.v1.Admin": {
        "Drain": OPERATORS,
        "MoveOut": OPERATORS,
        "Replicate": PLANNERS,
        "Stats": OPERATORS,
        "List": OPERATORS,
        "Release": OPERATORS,
        "Purge": OPERATORS,
        "Scrub": OPERATORS,
    },
    "moonpool.v1.Engine": {
        "Prefill": TENANTS,
        "Generate": TENANTS,
        "EngineInfo": TENANTS,
    },
    "grpc.health.v1.Health": {
        "Check": ANYBODY,
        "List": ANYBODY,
        "Watch": ANYBODY,
    },
    "grpc.reflection.v1alpha.ServerReflection": {
        "ServerReflectionInfo": ANYBODY,
    },
}

ACCESS: Mapping[str, Rule] = {
    f"/{service}/{method}": rule
    for service, methods in _TABLE.items()
    for method, rule in methods.items()
}
