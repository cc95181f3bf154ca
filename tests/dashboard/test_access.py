"""The pages for whoever has no mouse, does not see them, or has a small screen, in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import pytest

from kvstore.cli.stack import Child
from kvstore.dashboard.panels import PANELS
from tests.dashboard.browser import Browser, Tab, browsing
from tests.dashboard.test_prometheus import board, explained, load
from tests.gateway.http.conftest import client_of
from tests.nodes import eventually

Show: TypeAlias = Callable[[str], Tab]

LOOKS = Path(__file__).with_name("looks.js").read_text()
CONTRAST = 4.5  # of WCAG 2, level AA, for text of any size
COMPILED_SECONDS = 500.0
WIDTHS = (360, 1600)
PAGES = ("", "whatif")
DRAWN = "Number(document.body.dataset.drawn) >= 2"  # rates have been taken
ANSWERED = "document.querySelectorAll('[data-figure]').length === 14"
WHY = "document.getElementById('why')"
READY = {"": DRAWN, "whatif": ANSWERED}
CONTROLS = {"link", "button", "slider", "combobox", "DisclosureTriangle", "region", "dialog"}


@pytest.fixture(scope="module")
def loaded(gateway: Child) -> Child:
    """There is something to show, and the simulator is compiled, which takes minutes once."""
    load(gateway)
    asked = [sys.executable, "-m", "kvstore.planner.whatif"]
    subprocess.run(asked, input=b"{}", capture_output=True, check=True, timeout=COMPILED_SECONDS)
    return gateway


@pytest.fixture(scope="module")
def browser(loaded: Child, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no browser here: on Debian, apt-get install chromium fonts-dejavu-core")
    with browsing(found, tmp_path_factory.mktemp("browser")) as begun:
        yield begun


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    with browser.tab() as opened:
        yield opened


@pytest.fixture
def show(tab: Tab, loaded: Child) -> Show:
    def shown(page: str) -> Tab:
        tab.open(f"http://{loaded.address}/{page}", f"document.body && {READY[page]}")
        tab.tell(LOOKS)
        return tab

    return shown


@pytest.mark.parametrize("page", PAGES)
def test_the_tab_key_comes_to_every_control_once_and_one_sees_where_it_is(
    show: Show, page: str
) -> None:
    tab = show(page)
    wanted, came = tab.tell("controls()"), []
    assert len(wanted) >= 10
    for _ in wanted:
        tab.press("Tab")
        at = tab.tell("focused()")
        assert at["seen"], f"nobody sees that {at['called']} has the focus"
        came.append(at["called"])
    assert came == wanted
    tab.press_back()
    assert tab.tell("focused()")["called"] == wanted[-2]


def tells_why(tab: Tab, open_: Callable[[], None]) -> bool:
    """Whether the page does once it is asked to: a conductor may be late, and is asked again."""
    open_()
    tab.until(f"{WHY}.open && !{WHY}.textContent.includes('asking the conductor')")
    if tab.tell("document.querySelectorAll('#why-engines tbody tr').length") == 2:
        return True
    tab.press("Escape")
    tab.until(f"!{WHY}.open && !location.hash")
    return False


@pytest.mark.parametrize("key", ["Enter", " "])
def test_figures_of_a_chart_and_why_a_request_went_there_open_by_the_keyboard(
    show: Show, gateway: Child, key: str
) -> None:
    tab = show("")
    tab.tell("document.querySelector('summary').focus()")
    tab.press(key)
    tab.until("document.querySelector('details').open")
    tab.press(key)
    tab.until("!document.querySelector('details').open")
    asked, _ = explained(gateway)
    tab.tell(f"""document.querySelector('td button[data-request="{asked}"]').focus()""")
    eventually(lambda: tells_why(tab, lambda: tab.press(key)))
    assert tab.tell("location.hash") == f"#{asked}"
    assert tab.tell(f"{WHY}.contains(document.activeElement)")
    tab.press("Escape")
    tab.until(f"!{WHY}.open && !location.hash")
    assert tab.tell("document.activeElement.dataset.request") == asked


def test_whoever_is_at_a_request_stays_there_when_others_come(show: Show, gateway: Child) -> None:
    tab = show("")
    tab.tell("document.querySelector('td button').focus()")
    before = tab.tell("document.activeElement.dataset.request")
    with client_of(gateway) as ai:
        ai.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=2)
    tab.until(f"document.querySelector('td button').dataset.request !== '{before}'")
    assert tab.tell("document.activeElement.dataset.request") == before


def test_a_slider_moves_by_an_arrow_and_the_simulation_follows(show: Show) -> None:
    tab = show("whatif")
    figure = "document.querySelector('[data-side=left] [data-figure^=prefill] td').textContent"
    before = tab.tell(figure)
    tab.tell("document.querySelector('[data-side=left] [name=rate]').focus()")
    for _ in range(12):
        tab.press("ArrowRight")
    tab.until("new URLSearchParams(location.search).get('left').includes('rate=12&')")
    tab.until(f"{figure} !== {before!r}")
    [rate, *_] = [one for one in tab.roles() if one["role"] == "slider" and "second" in one["name"]]
    assert rate["name"] == "requests a second"


@pytest.mark.parametrize("page", PAGES)
def test_controls_have_names_charts_have_their_figures_in_words_and_headings_are_in_order(
    show: Show, gateway: Child, page: str
) -> None:
    tab = show(page)
    every = tab.roles()
    nameless = [one for one in every if one["role"] in CONTROLS and not one["name"].strip()]
    assert not nameless
    told = [one["name"] for one in every if one["role"] == "image"]
    assert len(told) >= 8 and all(re.search(r": .*\d", name) for name in told), told
    levels = [one["level"] for one in every if one["role"] == "heading"]
    assert levels[0] == 1 and levels.count(1) == 1 and len(levels) >= 3
    assert all(one <= before + 1 for before, one in pairwise(levels))
    if not page:
        of_charts = [one["name"] for one in every if one["role"] == "DisclosureTriangle"]
        shown = [panel.title for panel in PANELS if board(gateway)[panel.key]]
        assert [name.partition(":")[0] for name in of_charts] == shown, "which chart's figures?"
        assert tab.tell("[...document.querySelectorAll('th')].every(one => one.scope)")


def test_while_nothing_happens_nothing_is_said_aloud(show: Show) -> None:
    tab = show("")
    tab.tell("listen()")
    drawn = tab.tell("Number(document.body.dataset.drawn)")
    tab.until(f"Number(document.body.dataset.drawn) >= {drawn + 2}")
    assert tab.tell("window.saidAloud") == []


def test_a_slider_says_itself_how_it_stands_and_only_what_came_of_it_is_said_aloud(
    show: Show,
) -> None:
    tab = show("whatif")
    tab.tell("listen()")
    tab.tell("document.querySelector('[data-side=right] [name=rate]').focus()")
    tab.press("ArrowRight")
    tab.until("window.saidAloud.some(one => one.endsWith('requests'))")
    said = set(tab.tell("window.saidAloud"))
    assert len(said) == 2 and "simulating…" in said


@pytest.mark.parametrize("page", PAGES)
def test_text_stands_out_in_both_themes_and_an_open_page_follows_when_they_are_switched(
    show: Show, tab: Tab, gateway: Child, page: str
) -> None:
    tab.prefer(prefers_color_scheme="light")
    show(page)
    tab.tell("document.querySelectorAll('details').forEach(one => { one.open = true })")
    if not page:
        asked, _ = explained(gateway)
        eventually(lambda: tells_why(tab, lambda: tab.tell(f"why('{asked}')")))
    found = tab.tell("contrasts()")
    assert len(found) > 50 and tab.tell("light(ground(document.body))") > 0.5
    assert not [one for one in found if one[1] < CONTRAST]
    tab.prefer(prefers_color_scheme="dark")
    tab.until(f"contrasts().every(one => one[1] >= {CONTRAST})")
    assert tab.tell("light(ground(document.body))") < 0.05


@pytest.mark.parametrize("page", PAGES)
def test_nothing_moves_by_itself_for_whoever_wants_no_motion(
    show: Show, tab: Tab, page: str
) -> None:
    tab.prefer(prefers_reduced_motion="reduce")
    show(page)
    tab.tell("document.body.style.transition = 'opacity 1s'")
    assert tab.tell("moving()") == []


@pytest.mark.parametrize("page", PAGES)
def test_it_is_no_wider_than_the_window(show: Show, page: str) -> None:
    tab = show(page)
    tab.tell("document.querySelectorAll('details').forEach(one => { one.open = true })")
    for pixels in WIDTHS:
        tab.widen(pixels)
        tab.until(f"innerWidth === {pixels} && beyond({pixels}).length === 0")
        tab.until(f"document.documentElement.scrollWidth <= {pixels}")
        tab.until(f"document.body.scrollWidth <= {pixels}")
