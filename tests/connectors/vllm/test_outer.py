"""What a worker's half knows of the connector around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from kvstore.engine.connectors.unsupported import Unsupported
from kvstore.engine.connectors.vllm import MoonpoolConnector
from kvstore.engine.connectors.vllm import outer as module
from kvstore.engine.connectors.vllm.outer import Outer, outer_of
from tests.connectors.vllm.shaking import Shaking


class Silent(Shaking):
    get_handshake_metadata = KVConnectorBase_V1.get_handshake_metadata
    set_xfer_handshake_metadata = KVConnectorBase_V1.set_xfer_handshake_metadata


def made(kind: type, policy: str = "recompute", **extra: Any) -> Any:
    transfer = KVTransferConfig(
        kv_connector="any",
        kv_role="kv_both",
        kv_load_failure_policy=policy,
        kv_connector_extra_config=extra,
    )
    config: Any = SimpleNamespace(kv_transfer_config=transfer)
    return kind(config, KVConnectorRole.WORKER, None)


def within(monkeypatch: pytest.MonkeyPatch, outer: Any, *connectors: Any) -> None:
    """vLLM has made these, in that one."""
    outer.sub_connectors = list(connectors)
    monkeypatch.setattr(module, "has_kv_transfer_group", lambda: True)
    monkeypatch.setattr(module, "get_kv_transfer_group", lambda: outer)


def test_alone_its_own_policy_counts_and_its_handshake_reaches_itself() -> None:
    assert outer_of(made(MoonpoolConnector)) == Outer("recompute", ())


def test_among_several_the_policy_of_the_one_around_them_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = made(MoonpoolConnector, "recompute")
    within(monkeypatch, made(Shaking, "fail"), ours, made(Silent))
    assert outer_of(ours) == Outer("fail", ())


@pytest.mark.parametrize("other", [Shaking, MoonpoolConnector])
def test_others_that_take_a_handshake_for_their_own_are_named(
    monkeypatch: pytest.MonkeyPatch, other: type
) -> None:
    ours = made(MoonpoolConnector)
    within(monkeypatch, made(Silent), made(other), made(Silent), ours)
    assert outer_of(ours).shaking == (other.__name__,)


def test_a_connector_in_one_in_another_takes_it_that_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    within(monkeypatch, made(Silent), made(Shaking))
    assert outer_of(made(MoonpoolConnector)).shaking == ("Shaking",)


def test_conductors_are_refused_where_they_could_not_hear_of_an_engine_before_its_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = made(MoonpoolConnector, conductors=["127.0.0.1:7420"], address="127.0.0.1:8000")
    within(monkeypatch, made(Silent), ours, made(Shaking))
    with pytest.raises(Unsupported, match=r"conductors beside Shaking: .*; set none"):
        ours.register_kv_caches({})
