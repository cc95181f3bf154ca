"""What the charts showed lately: each line's value at each moment, for some minutes. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

from kvstore.dashboard.panels import PANELS, VLLM_PANELS, Panel
from kvstore.dashboard.samples import Samples

MOMENTS_MAX = 300
LINES_MAX = 32  # of one chart


class History:
    """Of all charts."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, dict[str, dict[str, float]]]] = deque(maxlen=MOMENTS_MAX)

    def take(self, at: float, samples: Samples) -> None:
        """How things are at a moment, in seconds of the calendar's clock."""
        every = (*PANELS, *VLLM_PANELS)
        self._moments.append((at, {panel.key: shown(panel, samples) for panel in every}))

    @property
    def last(self) -> dict[str, dict[str, float]]:
        """By chart and line."""
        return self._moments[-1][1] if self._moments else {}

    def charts(self) -> list[dict[str, Any]]:
        """As JSON: the moments of all, and of each line a value or null at each. Those of vLLM only
        where they show something."""
        of_vllm = [self._chart(panel) for panel in VLLM_PANELS]
        return [self._chart(panel) for panel in PANELS] + [one for one in of_vllm if one["lines"]]

    def _chart(self, panel: Panel) -> dict[str, Any]:
        names: dict[str, None] = {}
        for _, values in self._moments:
            names.update(dict.fromkeys(values[panel.key]))
        return {
            "key": panel.key,
            "title": panel.title,
            "asks": panel.asks,
            "unit": panel.unit,
            "stacked": panel.stacked,
            "lines": [
                {"name": name, "values": [of[panel.key].get(name) for _, of in self._moments]}
                for name in names
            ],
        }

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self._moments]


def shown(panel: Panel, samples: Samples) -> dict[str, float]:
    """A chart's lines by the names that its legend has."""
    found: dict[str, float] = {}
    for line in panel.lines:
        for label, value in sorted(line.is_.values(samples).items()):
            if len(found) < LINES_MAX:
                found[f"{line.name} {label}".strip()] = value
    return found
