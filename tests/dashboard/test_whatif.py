"""Questions of the what-if page, before a simulator that takes its time, and the page that asks."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvstore.dashboard import whatif as module
from kvstore.dashboard.whatif import WhatIf
from kvstore.errors import Overloaded
from tests.dashboard.browser import browsing
from tests.nodes import eventually

PAGE = Path(module.__file__).with_name("page")
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


def test_a_question_that_is_not_asked_again_is_given_up_for_another_but_not_while_it_compiles(
    begun: Callable[[], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(page: WhatIf, said: dict[str, str], count: int) -> None:
        """Its asker goes once it is the last of so many that were begun, and never comes again."""
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
        with pytest.raises(Overloaded, match="ask again"):
            await page.answer(said)
        await asyncio.to_thread(eventually, lambda: len(begun()) == count)
        monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)

    async def run() -> None:
        page, compiled = WhatIf(), tmp_path / "compiled"
        monkeypatch.setattr(module, "AGAIN_SECONDS", -1e9)
        await leave(page, ONE, 1)
        with pytest.raises(Overloaded, match="another question"):
            await page.answer(ANOTHER)
        compiled.touch()
        assert await page.answer(ONE) == ONE
        compiled.unlink()
        await leave(page, ONE, 2)
        monkeypatch.setattr(module, "AGAIN_SECONDS", 60.0)
        with pytest.raises(Overloaded, match="another question"):
            await page.answer(ANOTHER)
        monkeypatch.setattr(module, "AGAIN_SECONDS", -1e9)
        await leave(page, ANOTHER, 3)
        _, given_up, goes_on = begun()
        await asyncio.to_thread(eventually, lambda: not psutil.pid_exists(given_up))
        assert psutil.pid_exists(goes_on)

    asyncio.run(run())


def test_an_answer_that_comes_before_its_asker_comes_again_is_kept_for_them(
    begun: Callable[[], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        page = WhatIf()
        with pytest.raises(Overloaded, match="ask again"):
            await page.answer(ONE)
        await asyncio.to_thread(eventually, begun)
        (tmp_path / "compiled").touch()
        await asyncio.to_thread(eventually, lambda: not psutil.pid_exists(*begun()))
        monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
        with pytest.raises(Overloaded, match="another question"):
            await page.answer(ANOTHER)
        assert await page.answer(ONE) == ONE
        assert len(begun()) == 1

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


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """Where the page is, and what it has asked: of a rate of 12 it is to ask again, for ever."""
    every: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, said = self.path.partition("?")
            name, status, body = path.rpartition("/")[2], 200, b""
            if name == "answer":
                every.append(said)
                status, body = (429 if "rate=12&" in said else 400), b'{"error": "no"}'
            elif name == "choices":
                body = json.dumps(WhatIf.choices()).encode()
            elif name in ("whatif", "whatif.js"):
                body = (PAGE / (name if "." in name else f"{name}.html")).read_bytes()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/whatif?left=rate%3D12", every
        server.shutdown()
        thread.join()


def test_the_page_asks_no_more_what_is_not_set_any_more(
    asked: tuple[str, list[str]], tmp_path: Path
) -> None:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no browser here: on Debian, apt-get install chromium fonts-dejavu-core")
    address, every = asked
    with browsing(found, tmp_path) as browser, browser.tab() as tab:
        tab.open(address, "document.querySelectorAll('[role=status]').length === 2")
        eventually(lambda: every)
        assert "rate=12&" in every[0]
        tab.tell("document.querySelector('[data-side=left] [name=rate]').focus()")
        tab.press("ArrowRight")
        eventually(lambda: "rate=12.5&" in every[-1])
