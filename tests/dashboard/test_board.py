"""The page in a real browser: its figures are the metrics behind it, and it needs nobody else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.stack import Child
from kvstore.dashboard import board as dashboard
from kvstore.dashboard.panels import PANELS
from tests.dashboard.test_prometheus import PROMPT_TOKENS, PROMPTS, board, explained, load
from tests.gateway.http.conftest import House
from tests.nodes import eventually

BLOCK_TOKENS = 64
BROWSER_SECONDS = 90.0
ANSWER_SECONDS = 900.0  # the first that simulates compiles
KEYS = f'secret = "{"0f" * 32}"\n[client.web]\nkeys = ["{"1f" * 32}"]\n'
PAGE_MS = 12_000  # of the page's own time: several looks
# In a container there is no user namespace for its sandbox; it is shown nothing but this page.
CHROMIUM = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


class Page(HTMLParser):
    """What a browser made of the page: elements with their attributes, and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        if tag not in {"meta", "link", "br", "img", "input"}:
            self._open.append(len(self.found) - 1)

    def handle_endtag(self, tag: str) -> None:
        if self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for number in self._open:
            self.found[number][2].append(data)

    def with_(self, attribute: str, tag: str = "") -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, "".join(text))
            for one, attributes, text in self.found
            if attribute in attributes and tag in ("", one)
        ]


@pytest.fixture(scope="module")
def where(tmp_path_factory: Any) -> Path:
    """What the browser makes."""
    return Path(tmp_path_factory.mktemp("screens"))


@pytest.fixture(scope="module")
def page(house: House, gateway: Child, where: Path) -> Iterator[Page]:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no browser here: on Debian, apt-get install chromium fonts-dejavu-core")
    load(gateway)
    command = [browser, *CHROMIUM, f"--user-data-dir={where}", "--window-size=1400,1800"]
    address = f"http://{gateway.address}/"
    for dark in (False, True):  # kept for whoever looks into what this test made
        scheme = ["--force-dark-mode"] if dark else []
        shot = [f"--screenshot={where / ('dark.png' if dark else 'light.png')}"]
        _run([*command, *scheme, *shot, f"--virtual-time-budget={PAGE_MS}", address])
    yield Page(_run([*command, "--dump-dom", f"--virtual-time-budget={PAGE_MS}", address]))


def _run(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=BROWSER_SECONDS)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def fetched(gateway: Child, path: str) -> tuple[bytes, dict[str, str]]:
    asked = f"http://{gateway.address}{path}"
    with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS) as answer:
        return answer.read(), dict(answer.headers)


def answered(gateway: Child, question: str) -> dict[str, Any]:
    """Asked again for as long as it takes, as the page does."""

    def told() -> dict[str, Any] | None:
        try:
            found = fetched(gateway, f"/board/whatif/answer?{question}")[0]
        except urllib.error.HTTPError as error:
            assert error.code == 429, error
            return None
        return dict(json.loads(found))

    answer: dict[str, Any] = eventually(told, ANSWER_SECONDS)
    return answer


def test_the_figures_are_those_of_the_charts_behind_them(page: Page) -> None:
    figures = [one for one in page.with_("data-line", "b") if "data-value" in one[0]]
    assert len(figures) >= 5
    rows = page.with_("data-line", "tr")
    for attributes, text in figures:
        assert any(
            row["data-line"] == attributes["data-line"] and said.endswith(text)
            for row, said in rows
        ), f"{attributes['data-chart']}: {text} is in no chart"


def test_every_chart_that_has_data_is_drawn_and_told_in_words(page: Page, gateway: Child) -> None:
    shown = board(gateway)
    drawn = {attributes["data-chart"] for attributes, _ in page.with_("data-chart", "article")}
    assert drawn == {panel.key for panel in PANELS}
    words = [attributes["aria-label"] or "" for attributes, _ in page.with_("aria-label", "div")]
    for panel in PANELS:
        if shown[panel.key]:
            [told] = [one for one in words if one.startswith(f"{panel.title}: ")]
            assert all(name in told for name in shown[panel.key]), told


def test_hits_as_the_page_shows_them_are_those_of_the_last_requests(
    page: Page, gateway: Child
) -> None:
    requests = json.loads(fetched(gateway, "/board/requests")[0])["requests"]
    found = sum(one["cached_tokens"] for one in requests)
    share = found / sum(one["prompt_tokens"] for one in requests)
    [(attributes, text)] = [
        one
        for one in page.with_("data-line", "b")
        if (one[0]["data-chart"], one[0]["data-line"]) == ("hit_rate", "found")
    ]
    assert float(attributes["data-value"] or "nan") == pytest.approx(share, abs=0.02)
    assert text == f"{100 * float(attributes['data-value'] or 'nan'):.1f} %"


def test_all_of_a_prompt_is_said_to_be_found_where_it_was(page: Page, gateway: Child) -> None:
    requests = json.loads(fetched(gateway, "/board/requests")[0])["requests"]
    [text] = [text for one, text in page.with_("id", "table") if one["id"] == "requests"]
    assert text.count("all was") == len(requests) - PROMPTS, "but for the first of each"
    assert text.count("absent") == PROMPTS


def test_every_process_is_listed_and_the_page_says_that_all_answer(
    page: Page, house: House
) -> None:
    text = "".join("".join(part) for _, _, part in page.found)
    count = len(house.watched) + 1
    assert f"{count} of {count} processes answer" in text
    assert all(address in text for address in house.watched)


def test_a_request_says_why_it_was_sent_where_it_was(
    page: Page, gateway: Child, house: House, tmp_path: Path
) -> None:
    one, told = explained(gateway)
    assert told["planned"] and told["sentence"] and len(told["engines"]) == len(house.engines)
    browser = shutil.which("chromium")
    assert browser is not None
    opened = [f"--virtual-time-budget={PAGE_MS}", f"http://{gateway.address}/#{one}"]
    command = [browser, *CHROMIUM, f"--user-data-dir={tmp_path}", "--dump-dom", *opened]

    def dialog() -> tuple[dict[str, str | None], str] | None:
        [(attributes, text)] = Page(_run(command)).with_("open", "dialog")
        return None if "try again" in text else (attributes, text)  # a conductor may be late

    attributes, text = eventually(dialog, 3 * BROWSER_SECONDS)
    assert attributes["id"] == "why" and told["sentence"] in text
    assert all(engine["engine"] in text for engine in told["engines"])


def test_one_that_nobody_remembers_is_said_to_be_unknown(gateway: Child) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetched(gateway, "/board/requests/nobody")
    assert refused.value.code == 404


def test_the_command_line_explains_it_too(gateway: Child, house: House) -> None:
    [one, *_] = json.loads(fetched(gateway, "/board/requests")[0])["requests"]
    asked = [sys.executable, "-m", "kvstore", "explain", "--conductor", house.conductor.address]
    ran = subprocess.run([*asked, one["id"]], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    sentence, _, heads, *rows = ran.stdout.splitlines()
    assert sentence and heads.split()[0] == "engine" and len(rows) == len(house.engines)
    none = subprocess.run([*asked, "nobody"], capture_output=True, text=True, timeout=60)
    assert none.returncode == 3 and "no conductor remembers nobody" in none.stderr


def test_the_beginnings_that_prompts_share_are_those_that_were_sent(
    page: Page, gateway: Child
) -> None:
    shared = json.loads(fetched(gateway, "/board/requests")[0])["prefixes"]
    assert [one["depth"] for one in shared] == [0] * PROMPTS
    assert {one["tokens"] for one in shared} == {PROMPT_TOKENS - PROMPT_TOKENS % BLOCK_TOKENS}
    assert sum(one["share"] for one in shared) == pytest.approx(1.0)
    text = "".join("".join(part) for _, _, part in page.found)
    assert all(one["name"] in text for one in shared)


def test_whoever_asks_for_what_is_not_there_is_told_where_it_is(gateway: Child) -> None:
    with pytest.raises(urllib.error.HTTPError) as nowhere:
        fetched(gateway, "/dashboard")
    assert "/ is for people" in nowhere.value.read().decode()


def test_with_keys_it_is_at_an_address_of_its_own_or_nowhere(house: House, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    with house.serving("keyed", *house.knows, f"--keys={keys}") as hidden:
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetched(hidden, "/")
        assert refused.value.code == 404
        told = refused.value.read().decode()
        assert "--board" in told and "/ is for people" not in told
    options = (f"--keys={keys}", "--board=127.0.0.1:0")
    with house.serving("boarded", *house.knows, *options) as shown:
        with pytest.raises(urllib.error.HTTPError):
            fetched(shown, "/board/requests")
        with urllib.request.urlopen(f"http://{shown.board}/", timeout=10) as answer:
            assert b"Moonpool" in answer.read()


def test_a_terminal_shows_the_same(gateway: Child, house: House) -> None:
    asked = [sys.executable, "-m", "kvstore", "top", gateway.metrics, *house.watched]
    told = subprocess.run([*asked, "--once"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    for process in ("gateway", "node", "conductor", "engine"):
        assert re.search(rf"(?m)^{process} .* answers$", told.stdout), told.stdout
    assert "Memory and SSD" in told.stdout
    json_told = subprocess.run([*asked, "--json"], capture_output=True, text=True, timeout=60)
    assert {panel.key for panel in PANELS} <= json.loads(json_told.stdout)["charts"].keys()
    nobody = [sys.executable, "-m", "kvstore", "top", "127.0.0.1:1", "--once"]
    assert subprocess.run(nobody, capture_output=True, timeout=60).returncode == 1


def test_what_would_be_is_shown_for_two_clusters_side_by_side(
    gateway: Child, tmp_path: Path
) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no browser here")
    asked = {"left": "rate=12&prefill=1&decode=1", "right": "rate=12&prefill=4&decode=4"}
    told = [answered(gateway, one) for one in asked.values()]
    assert told[0]["outcome"]["share"] < told[1]["outcome"]["share"]
    address = f"http://{gateway.address}/whatif?{urllib.parse.urlencode(asked)}"
    opened = ["--dump-dom", f"--virtual-time-budget={4 * PAGE_MS}", address]
    shown = Page(_run([browser, *CHROMIUM, f"--user-data-dir={tmp_path}", *opened]))
    in_time = [text for one, text in shown.with_("data-figure") if one["data-figure"] == "in time"]
    assert in_time == [f"in time{100 * one['outcome']['share']:.1f} %" for one in told]


def test_a_question_that_cannot_be_is_refused_and_only_one_is_answered_at_a_time(
    gateway: Child,
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetched(gateway, "/board/whatif/answer?rate=0")
    assert refused.value.code == 400 and "rate = '0'" in json.load(refused.value)["error"]
    answered(gateway, "rate=49&prefill=8&decode=8")  # compiled by then

    def ask(rate: int) -> int:
        try:
            fetched(gateway, f"/board/whatif/answer?rate={rate}&prefill=8&decode=8")
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    with ThreadPoolExecutor(4) as threads:
        codes = list(threads.map(ask, (50, 51, 52, 53)))
    assert set(codes) == {200, 429} and codes.count(200) >= 1


def test_no_prompt_no_key_and_no_client_is_on_the_page(gateway: Child) -> None:
    for path in ("/", "/board/charts", "/board/requests"):
        body, _ = fetched(gateway, path)
        assert b"Bearer" not in body and b"prompt_text" not in body
    one = json.loads(fetched(gateway, "/board/requests")[0])["requests"][0]
    assert not {"prompt", "tokens", "client", "text"} & one.keys()


def test_the_page_asks_no_other_host_for_anything(gateway: Child) -> None:
    body, headers = fetched(gateway, "/")
    assert not re.search(rb"""(src|href)=["'](https?:)?//""", body)
    assert "default-src 'none'" in headers["content-security-policy"]
    for path in re.findall(rb'(?:src|href)="(/[^"]+)"', body):
        assert fetched(gateway, path.decode())[0], path


def test_without_the_library_that_draws_it_says_so_and_shows_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    script = dashboard._plotly().read_text()
    assert "moonpool[serve]" in script and "react(plot)" in script


def test_the_page_changes_nothing(gateway: Child) -> None:
    for path in ("/", "/board/charts", "/board/requests"):
        asked = urllib.request.Request(f"http://{gateway.address}{path}", data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=10)
        assert refused.value.code == 405


def test_the_screenshots_are_there_to_look_at(page: Page, where: Path) -> None:
    shots = list(where.glob("*.png"))
    assert len(shots) == 2 and all(one.stat().st_size > 20_000 for one in shots)
