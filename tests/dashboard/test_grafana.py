from __future__ import annotations

import json

import pytest

from kvstore.dashboard import grafana
from kvstore.dashboard.panels import PANELS, VLLM_PANELS, Panel
from tests import tree

FOLDER = tree.ROOT / "deploy" / "grafana"


def test_the_files_that_grafana_imports_are_made_of_the_charts_as_they_are() -> None:
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert found == grafana.files(), "python -m kvstore.dashboard.grafana deploy/grafana"


@pytest.mark.parametrize(
    ("name", "panels"), [("moonpool", PANELS), ("moonpool-vllm", VLLM_PANELS)], ids=["pool", "vllm"]
)
def test_every_chart_is_there_with_all_its_lines_and_none_lies_on_another(
    name: str, panels: tuple[Panel, ...]
) -> None:
    found = json.loads((FOLDER / f"{name}.json").read_text())["panels"]
    assert [one["title"] for one in found] == [one.title for one in panels]
    assert [len(one["targets"]) for one in found] == [len(one.lines) for one in panels]
    places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in found}
    assert len(places) == len(found) == len({one["id"] for one in found})


def test_what_may_fall_below_nothing_is_shown_there_and_all_else_stands_on_zero() -> None:
    panels = [one for text in grafana.files().values() for one in json.loads(text)["panels"]]
    below = {one["title"] for one in panels if "min" not in one["fieldConfig"]["defaults"]}
    assert below == {one.title for one in VLLM_PANELS if one.key.startswith("vllm_saved")}
