"""A plan as one page of HTML that needs no other file: the answers, and plots of them."""

from __future__ import annotations

from html import escape

from kvstore.percent import percent
from kvstore.planner.answers import Answers, Memory
from kvstore.planner.caution import caution
from kvstore.planner.cluster import Cluster, Role
from kvstore.planner.load import Summary
from kvstore.planner.outcome import Times
from kvstore.planner.reasons import why
from kvstore.planner.search import SHARE
from kvstore.planner.svg import Axes, Series, bars, lines

COLOURS = (
    *("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c"),
    *("#0b7285", "#b35900", "#5c940d", "#495057", "#7048e8", "#6f4518"),
)
DARK = (  # the same on what is nearly black, which they were not seen on
    *("#58a6ff", "#ff8a4c", "#51cf66", "#cc8ce0", "#f783ac"),
    *("#3bc9db", "#ffc078", "#a9e34b", "#adb5bd", "#9d8cff", "#c8a27a"),
)
_STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f24; --back: #fff; --soft: #66707b; --rule: #dde1e6;
  --bar: #8fa3bf; --best: #1f6feb }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --back: #14171a; --soft: #9aa4ae; --rule: #30363d;
    --bar: #46566c; --best: #4c8dff }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1200px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 0 0 .4rem }
.soft { color: var(--soft) }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 1rem;
  margin: 1.5rem 0 }
.figures b { display: block; font-size: 1.3rem; white-space: nowrap;
  font-variant-numeric: tabular-nums }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
  gap: 2rem }
figure { margin: 0 } svg { width: 100%; height: auto }
text { font: 11px system-ui, sans-serif; fill: var(--soft) }
.middle { text-anchor: middle } .end { text-anchor: end } .name { font-size: 12px }
.grid { stroke: var(--rule); fill: none } .mark { stroke: var(--soft); stroke-dasharray: 4 4 }
.line { fill: none; stroke: var(--line); stroke-width: 1.8; stroke-linecap: round;
  stroke-linejoin: round } .line.s0 { stroke-width: 3 }
.bar { fill: var(--bar) } .bar.best { fill: var(--best) }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0; margin: 0;
  font-size: .85rem }
.legend li::before { content: "\\2014\\00a0"; font-weight: bold; color: var(--line) }
"""


def html(found: Answers, load: Summary, name: str, cluster: Cluster) -> str:
    """Everything said by `found`, of the load of this name on that cluster."""
    dark = f"@media (prefers-color-scheme: dark) {{\n{_lines_of(DARK)}}}\n"
    style = f"{_STYLE}{_lines_of(COLOURS)}{dark}"
    plots = "".join(
        f"<figure><h2>{escape(title)}</h2>{plot}</figure>" for title, plot in _plots(found)
    )
    count = f"{load.requests:,} requests in {load.duration_s:,.0f} s"
    told = f"{why(found)} {caution(load.requests)}".strip()
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>moonpool plan: {escape(name)}</title>\n<style>\n{style}</style></head>\n"
        f"<body>\n<h1>{escape(name)}</h1>\n"
        f'<p class="soft">{count}; {escape(found.cluster)}; {escape(found.policy)} decides.'
        f"<br>{escape(_settings(cluster))}</p>\n"
        f'<div class="figures">{_figures(found)}</div>\n<p>{escape(told)}</p>\n'
        f'<div class="plots">{plots}</div>\n</body>\n</html>\n'
    )


def _lines_of(colours: tuple[str, ...]) -> str:
    return "".join(f".s{i} {{ --line: {colour} }}\n" for i, colour in enumerate(colours))


def _settings(cluster: Cluster) -> str:
    """What the answers are of, for whoever has the page alone."""
    memory = f"{cluster.dram_bytes / 1e9:,.4g} GB of DRAM"
    if cluster.ssd_bytes:
        memory += f" and {cluster.ssd_bytes / 1e9:,.4g} GB of SSD"
    return (
        f"{cluster.shape.name}, {cluster.shape.kv_bytes_per_token:,} bytes of KV a token;"
        f" {memory} for it at each host that prefills; {cluster.fabric.name} between hosts. In time"
        f" is a first token within {cluster.ttft_seconds:g} s, and each after it within"
        f" {cluster.tpot_seconds * 1e3:g} ms on average."
    )


def _figures(found: Answers) -> str:
    told = found.outcome
    some = {
        "in time": percent(told.share),
        f"requests/s, {SHARE:.0%} in time": found.rates.text(found.highest)
        if found.highest
        else "none",
        "TTFT, mean and p99": _pair(told.ttft, 1, "s"),
        "TPOT, mean and p99": _pair(told.tpot, 1e3, "ms"),
        "prefilled tokens found": percent(told.hits.all),
        "goodput, tokens/s": f"{told.goodput:,.0f}",
    }
    if found.together:
        other = found.together.outcome
        some[f"TTFT where each does both{_sound(found)}"] = _pair(other.ttft, 1, "s")
        some[f"TPOT where each does both{_sound(found)}"] = _pair(other.tpot, 1e3, "ms")
    return "".join(
        f'<div><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>'
        for name, value in some.items()
    )


def _pair(times: Times | None, unit: float, name: str) -> str:
    return f"{times.mean * unit:.3g} / {times.p99 * unit:.3g} {name}" if times else "-"


def _plots(found: Answers) -> list[tuple[str, str]]:
    over, hosts = found.timeline, found.memory
    goodput, share = (
        [
            Series(
                curve.policy,
                [point.rate for point in curve.points],
                [point.goodput if which else point.share for point in curve.points],
                number,
            )
            for number, curve in enumerate(found.curves)
        ]
        for which in (True, False)
    )
    plots = [
        ("Goodput against rate", lines(Axes("requests/s", "tokens/s in time"), goodput)),
        (
            "In time against rate",
            lines(Axes("requests/s", "share; dashed: wanted", 1.0), share, SHARE),
        ),
        (
            "Time to first token, as requests came",
            lines(Axes("seconds", "mean TTFT, s"), _apart_and_together(found, "ttft")),
        ),
        (
            "In time, as requests came",
            lines(
                Axes("seconds", "share; dashed: wanted", 1.0),
                _apart_and_together(found, "in_time"),
                SHARE,
            ),
        ),
        (
            "Waiting and decoding",
            lines(
                Axes("seconds", "requests"),
                [
                    Series("waiting to be prefilled", over.seconds, over.queued, 1),
                    Series("being decoded", over.seconds, over.decoding, 0),
                ],
            ),
        ),
        (
            "Found against DRAM",
            lines(
                Axes("GB a host", "share", 1.0),
                [
                    Series("prefilled tokens found", *_against(hosts, "dram_bytes", "hits"), 0),
                    Series("requests in time", *_against(hosts, "dram_bytes", "share"), 2),
                ],
            ),
        ),
    ]
    if found.ssd:
        some = [
            Series("prefilled tokens found", *_against(found.ssd, "ssd_bytes", "hits"), 0),
            Series("requests in time", *_against(found.ssd, "ssd_bytes", "share"), 2),
        ]
        plots.append(("Found against SSD", lines(Axes("GB a host", "share", 1.0), some)))
    if found.splits:
        names = [*(f"{one.prefill}:{one.decode}" for one in found.splits), "both"]
        values = [
            *(one.highest for one in found.splits),
            found.together.highest if found.together else 0.0,
        ]
        best = None if found.rates.ends_at(max(values)) else values.index(max(values))
        axes = Axes(
            "engines that prefill : that decode; both: each does both, in chunks",
            "highest requests/s",
        )
        plots.append(("The same engines, split otherwise", bars(axes, names, values, best)))
    if found.parallelism:
        for role in (Role.PREFILL, Role.DECODE):
            tried = [one for one in found.parallelism.tried if one.role is role]
            values = [one.each_gpu for one in tried]
            names = [f"{one.tensor_parallel}" for one in tried]
            axes = Axes("GPUs of an engine", "highest requests/s a GPU")
            picture = bars(axes, names, values, values.index(max(values)) if values else 0)
            plots.append((f"Engines that {role}, by their size", picture))
    return plots


def _apart_and_together(found: Answers, name: str) -> list[Series]:
    over, both = found.timeline, found.together
    series = [Series("as asked", over.seconds, getattr(over, name), 0)]
    if both:
        title = f"each does both, chunks of {both.chunk_tokens}{_sound(found)}"
        series.append(Series(title, both.timeline.seconds, getattr(both.timeline, name), 1))
    return series


def _sound(found: Answers) -> str:
    """What else the same engines would do is told of healthy ones."""
    return ", and none dies" if found.healthy else ""


def _against(hosts: tuple[Memory, ...], size: str, name: str) -> tuple[list[float], list[float]]:
    return [getattr(one, size) / 1e9 for one in hosts], [getattr(one, name) for one in hosts]
