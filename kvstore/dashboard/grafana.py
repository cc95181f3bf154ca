"""The same charts for Grafana, over a Prometheus that reads every process's metrics.

`python -m kvstore.dashboard.grafana deploy/grafana` writes the files that Grafana imports: one of a
pool, and one of what vLLM servers add.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvstore.dashboard.panels import PANELS, VLLM_PANELS, Line, Panel, Unit

BOARDS = {"moonpool": ("Moonpool", PANELS), "moonpool-vllm": ("Moonpool: vLLM", VLLM_PANELS)}
_UNITS = {
    Unit.SHARE: "percentunit",
    Unit.SECONDS: "s",
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_SECOND: "Bps",
    Unit.PER_SECOND: "ops",
    Unit.COUNT: "short",
}
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard(uid: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """As Grafana's schema 39 has it."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["moonpool"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                }
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    stacking = {"mode": "normal" if panel.stacked else "none"}
    stands_on_zero = {} if panel.signed else {"min": 0}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.asks,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": _UNITS[panel.unit],
                **stands_on_zero,
                "custom": {"stacking": stacking, "fillOpacity": 25 if panel.stacked else 0},
            },
            "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
        "targets": [_target(letter, line) for letter, line in enumerate(panel.lines)],
    }


def _target(number: int, line: Line) -> dict[str, Any]:
    label = line.is_.label
    return {
        "refId": chr(ord("A") + number),
        "datasource": _SOURCE,
        "expr": line.is_.promql(),
        "legendFormat": f"{line.name} {{{{{label}}}}}".strip() if label else line.name,
    }


def files() -> dict[str, str]:
    """By name."""
    return {
        f"{uid}.json": json.dumps(dashboard(uid, *board), indent=2) + "\n"
        for uid, board in BOARDS.items()
    }


if __name__ == "__main__":
    for name, text in files().items():
        Path(sys.argv[1], name).write_text(text)
