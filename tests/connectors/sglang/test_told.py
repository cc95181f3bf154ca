"""What of a server's settings is named: what they come to, however they are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.connectors.sglang.engine import Engine, mha_pool
from tests.connectors.sglang.published import server

Engines = Callable[..., Engine]


@pytest.mark.parametrize(
    ("hip", "said", "alike"),
    [
        (None, {"SGLANG_USE_HND_KVCACHE": "0"}, True),
        (None, {"SGLANG_USE_HND_KVCACHE": "false"}, True),
        (None, {"SGLANG_USE_HND_KVCACHE": "true"}, False),
        (None, {"SGLANG_AITER_KV_CACHE_LAYOUT": "vectorized_5d"}, True),  # AMD's GPUs alone heed it
        ("7.0", {"SGLANG_AITER_KV_CACHE_LAYOUT": "NHD"}, True),
        ("7.0", {"SGLANG_AITER_KV_CACHE_LAYOUT": "vectorized_5d"}, False),
    ],
)
def test_servers_whose_pages_lie_alike_share_them(
    engine_of: Engines,
    monkeypatch: pytest.MonkeyPatch,
    hip: str | None,
    said: dict[str, str],
    alike: bool,
) -> None:
    def name() -> str:
        with server(model_path="m"):
            storage = engine_of(mha_pool("page_first")).storage
            return str(storage._client.space.spec.revision)

    monkeypatch.setattr("torch.version.hip", hip)
    plain = name()
    for setting, value in said.items():
        monkeypatch.setenv(setting, value)
    assert (name() == plain) == alike


def test_however_it_is_written_that_pages_lie_otherwise_is_one_name(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set()
    for value in ("1", "true", "TRUE"):
        monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", value)
        with server(model_path="m"):
            names.add(engine_of(mha_pool("page_first")).storage._client.space.spec.revision)
    assert len(names) == 1
