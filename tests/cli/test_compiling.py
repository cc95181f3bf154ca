"""Whoever waits for a compiler hears of it, and that it goes on."""

from __future__ import annotations

import re
import threading

import pytest

from kvstore.cli import compiling
from kvstore.cli.compiling import SAYS, said_compiling
from tests.nodes import eventually


def test_it_is_said_what_is_compiled_and_now_and_then_how_long_it_has_been(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "STILL_SECONDS", 0.01)
    said, threads = list[str](), threading.active_count()

    def goes_on() -> bool:
        said.extend(capsys.readouterr().err.splitlines())
        return len(said) >= 3

    with said_compiling("the simulator"):
        eventually(goes_on)
    assert said[0] == "compiling the simulator: one to several minutes, once on this machine"
    assert all(re.fullmatch(r"still compiling the simulator, \d+ s", one) for one in said[1:])
    assert all(one.encode().startswith(SAYS) for one in said)
    assert threading.active_count() == threads, "it is over"
