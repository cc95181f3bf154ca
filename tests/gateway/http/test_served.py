"""What a gateway asks of engines for a prompt, by what it knows of the model and of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.config import GatewayConfig
from kvstore.errors import ConfigError
from kvstore.gateway.http.asked import Asked
from kvstore.gateway.http.refusal import TooLong
from kvstore.gateway.http.served import Served

ENGINES = ("127.0.0.1:1",)


@pytest.mark.parametrize(("told", "room"), [(0, 1024), (100, 100)])
def test_no_more_is_asked_for_than_engines_have_room_for(
    model_dir: Path, told: int, room: int
) -> None:
    served = Served.of(GatewayConfig(model_dir, engines=ENGINES, max_model_len=told))
    unsaid = Asked(("w5 w6",), max_tokens=None)
    (prompt,) = served.prompts(unsaid)
    assert len(prompt) + served.new_tokens(prompt, unsaid) == room
    with pytest.raises(TooLong, match=f"for {room} in all"):
        served.prompts(Asked(("w5 w6",), max_tokens=room))


def test_room_for_less_than_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-model-len = -1"):
        GatewayConfig(Path("m"), engines=ENGINES, max_model_len=-1)
