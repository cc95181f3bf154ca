"""`route` with vLLM servers: two prefill, and two follow them layer by layer and decode.

They have the connector with all of its settings as anybody gets them, and vLLM's own prefix cache,
of which conductors are told too. Round-robin has all of that as well. What differs is who prefills
and who decodes.
"""

from __future__ import annotations

from dataclasses import replace

from bench import route
from bench.report import Report
from bench.route import Say, Sizes
from bench.vllm_server import SERVERS

RUNS = 2
GOAL = route.GOAL


def run(runs: int, say: Say, sizes: Sizes | None = None, foretold: bool = True) -> Report:
    """As `route.run`."""
    report = route.run(runs, say, sizes, foretold, SERVERS)
    return replace(report, name="servers", against=f"{report.against}; vLLM servers")
