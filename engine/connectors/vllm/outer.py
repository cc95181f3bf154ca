"""The connector that vLLM made itself: this one, or one that asks several, as MultiConnector does.

Each of several has a configuration of its own, and what that says of failed loads counts for
nothing. What one of them says at the start is handed to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

_HANDSHAKE = (
    "get_handshake_metadata",
    "set_xfer_handshake_metadata",
    "set_xfer_handshake_metadata_pp_aware",
)


@dataclass(frozen=True, slots=True)
class Outer:
    """What of it a worker's half has to know."""

    policy: str  # its kv_load_failure_policy
    shaking: tuple[str, ...]  # other connectors, that take a handshake's words for their own


def outer_of(connector: KVConnectorBase_V1) -> Outer:
    """Of a worker's connector, once vLLM has made them all."""
    outer: Any = get_kv_transfer_group() if has_kv_transfer_group() else connector
    around = [outer] if outer is not connector else []
    others = [one for one in getattr(outer, "sub_connectors", around) if one is not connector]
    return Outer(
        outer._vllm_config.kv_transfer_config.kv_load_failure_policy,
        tuple(type(one).__name__ for one in others if _shakes(type(one))),
    )


def _shakes(kind: type) -> bool:
    return any(getattr(kind, name) is not getattr(KVConnectorBase_V1, name) for name in _HANDSHAKE)
