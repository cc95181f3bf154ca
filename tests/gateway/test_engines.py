from __future__ import annotations

import pytest

from kvstore.config import OPEN
from kvstore.gateway import engines
from kvstore.gateway.engines import Engines


def test_of_too_many_engines_the_channel_of_that_used_longest_ago_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "CHANNELS_MAX", 2, raising=False)
    all_of = Engines(OPEN)
    for port in (1, 2, 1, 3):
        all_of._stub(f"127.0.0.1:{port}")
    assert [*all_of._channels] == ["127.0.0.1:1", "127.0.0.1:3"]
    all_of.close()
