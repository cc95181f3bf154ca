"""Questions of the what-if page, before a simulator that takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kvstore.dashboard import whatif as module
from kvstore.dashboard.whatif import WhatIf
from kvstore.errors import Overloaded
from tests.nodes import eventually

ONE, ANOTHER = {"rate": "12"}, {"rate": "13"}
COMPILES = """echo $$ >>{0}/begun; until [ -e {0}/compiled ]; do sleep 0.01; done; cat"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """The processes that were begun; each answers with what it was asked, once `compiled` is
    there."""
    monkeypatch.setattr(module, "_COMMAND", ("sh", "-c", COMPILES.format(tmp_path)))
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    said = tmp_path / "begun"
    return lambda: [int(one) for one in said.read_text().split()] if said.exists() else []


def test_a_question_that_takes_long_goes_on_and_whoever_asks_it_again_has_its_answer(
    begun: Callable[[], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        page = WhatIf()
        for said, why in ((ONE, "ask again"), (ANOTHER, "another question"), (ONE, "ask again")):
            with pytest.raises(Overloaded, match=why):
                await page.answer(said)
        (tmp_path / "compiled").touch()
        monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
        assert await page.answer(ONE) == ONE
        assert len(begun()) == 1
        assert await page.answer(ANOTHER) == ANOTHER
        assert len(begun()) == 2

    asyncio.run(run())


def test_a_question_for_which_nobody_waits_any_more_ends_with_the_gateway(
    begun: Callable[[], list[int]],
) -> None:
    async def run() -> None:
        with pytest.raises(Overloaded):
            await WhatIf().answer(ONE)
        await asyncio.to_thread(eventually, begun)

    asyncio.run(run())
    assert not psutil.pid_exists(*begun())
