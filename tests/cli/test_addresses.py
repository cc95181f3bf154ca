"""What is no address of a process is refused by the option's name, before anybody is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.cli.main import main
from kvstore.config import GatewayConfig
from kvstore.errors import Invalid

NONE = ["here", "here:", ":7410", "http://here", "here:0", "here:65536", f"here:{'9' * 5_000}"]
COMMANDS = {
    "stat --node": "--node",
    "health": "ADDRESS",
    "roles --conductor": "--conductor",
    "engine --model none --conductor": "--conductor",
    "explain r --conductor": "--conductor",
}


@pytest.mark.parametrize("address", NONE)
@pytest.mark.parametrize("asked", COMMANDS)
def test_an_address_that_is_none_is_told_with_the_right_form(
    asked: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*asked.split(), address]) == 2
    assert f"{COMMANDS[asked]} = {address!r}: write HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("address", NONE)
def test_a_gateway_s_conductor_is_one_that_can_be_called(address: str) -> None:
    with pytest.raises(Invalid, match=r"--conductor = .*: write HOST:PORT"):
        GatewayConfig(Path("model"), conductors=(address,))
