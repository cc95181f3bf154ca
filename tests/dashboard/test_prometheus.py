"""A real Prometheus reads a real pool: every chart has data there, and says what ours says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.stack import Child
from kvstore.dashboard.expressions import Quantile, Ratio
from kvstore.dashboard.panels import PANELS
from tests.etcd import free_port
from tests.gateway.http.conftest import House, client_of
from tests.nodes import eventually

READY_SECONDS, STOP_SECONDS = 30.0, 10.0
REQUESTS, PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 30, 5, 300, 6
_ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
# Of a pool of one node without SSD, of which nothing was damaged or evicted, no lines:
SILENT = {"ttft_parts": {"handed over p50", "handed over p99"}, "blocks_missed": {"opened:"}}


class Prometheus:
    def __init__(self, directory: Path, targets: tuple[str, ...]) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {"job_name": "moonpool", "static_configs": [{"targets": list(targets)}]}
            ],
        }
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(config))  # which is YAML
        said = subprocess.run(["promtool", "check", "config", file], capture_output=True, text=True)
        assert said.returncode == 0, said.stdout + said.stderr
        command = [
            *(*_ENDS_WITH_US, "prometheus", f"--config.file={file}"),
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self._url.removeprefix('http://')}",
        ]
        with (directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(STOP_SECONDS)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, text: str) -> list[dict[str, Any]]:
        said = urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{said}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def number(self, text: str) -> float:
        [found] = self.query(text)
        return float(found["value"][1])


@pytest.fixture(scope="module")
def prometheus(house: House, gateway: Child, tmp_path_factory: Any) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus here: on Debian and Ubuntu, apt-get install prometheus")
    targets = (*house.watched, gateway.metrics)
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), targets)
    try:
        eventually(made.ready, READY_SECONDS)
        eventually(lambda: len(made.query("up == 1")) == len(targets), READY_SECONDS)
        load(gateway)
        time.sleep(5.0)  # two readings of it, by both
        yield made
    finally:
        made.close()


def load(gateway: Child) -> None:
    with client_of(gateway) as ai:
        for number in range(REQUESTS):
            prompt = [(7 * token + number % PROMPTS) % 500 for token in range(PROMPT_TOKENS)]
            ai.completions.create(model="tiny", prompt=prompt, max_tokens=OUTPUT_TOKENS)


def explained(gateway: Child) -> tuple[str, dict[str, Any]]:
    """The last request of which a conductor says why it was sent there, by its id, and what it
    says: of one that none answered for in time, on a busy machine, nobody knows."""

    def answer(path: str) -> Any:
        with urllib.request.urlopen(f"http://{gateway.address}{path}", timeout=60) as said:
            return json.load(said)

    def found() -> tuple[str, dict[str, Any]] | None:
        for one in answer("/board/requests")["requests"]:
            with suppress(urllib.error.HTTPError):
                return one["id"], answer(f"/board/requests/{one['id']}")
        return None

    known: tuple[str, dict[str, Any]] = eventually(found)
    return known


def board(gateway: Child) -> dict[str, dict[str, float]]:
    """What the built-in page shows last, by chart and line."""
    with urllib.request.urlopen(f"http://{gateway.address}/board/charts", timeout=10) as answer:
        charts = json.load(answer)["charts"]
    return {
        chart["key"]: {
            line["name"]: line["values"][-1]
            for line in chart["lines"]
            if line["values"][-1] is not None
        }
        for chart in charts
    }


def test_every_line_of_every_chart_has_data(prometheus: Prometheus) -> None:
    for panel in PANELS:
        for line in panel.lines:
            if line.name not in SILENT.get(panel.key, ()):
                found = prometheus.query(line.is_.promql())
                assert found, f"{panel.title}: {line.name} has no data"
                assert all(one["value"][1] != "NaN" for one in found), (panel.title, line.name)


def test_the_built_in_page_shows_every_chart_and_what_prometheus_says(
    prometheus: Prometheus, gateway: Child
) -> None:
    shown = board(gateway)
    for panel in PANELS:
        assert shown[panel.key], f"{panel.title} shows nothing"
        for line in panel.lines:
            # These do not hang on when exactly each of the two read what, as rates do. But of what
            # is new a rate leaves out the first values, which we count: of few, they may be the
            # slowest. So quantiles are compared with those of all that was counted.
            lines = shown[panel.key].keys() - SILENT.get(panel.key, set())
            if isinstance(line.is_, Ratio | Quantile) and line.name in lines:
                asked = line.is_.promql()
                if isinstance(line.is_, Quantile):
                    asked = re.sub(r"rate\((.*)\[1m\]\)", r"\1", asked)
                said = prometheus.number(asked)
                assert shown[panel.key][line.name] == pytest.approx(said, rel=0.02), line.name


def test_what_was_counted_is_what_was_asked(prometheus: Prometheus) -> None:
    """Each prompt the first time wholly computed, and then found but for its last token at most."""
    asked = REQUESTS * PROMPT_TOKENS
    assert prometheus.number('sum(moonpool_requests_total{answer="whole"})') == REQUESTS
    assert prometheus.number("sum(moonpool_request_prompt_tokens_total)") == asked
    assert prometheus.number("sum(moonpool_request_output_tokens_total)") == (
        REQUESTS * OUTPUT_TOKENS
    )
    assert prometheus.number("sum(moonpool_time_to_first_token_seconds_count)") == REQUESTS
    cached = prometheus.number("sum(moonpool_request_cached_tokens_total)")
    computed = prometheus.number('sum(moonpool_prompt_tokens_total{source="computed"})')
    again = (REQUESTS - PROMPTS) * PROMPT_TOKENS
    assert cached == again, "every block of it, the short one at its end too"
    # Engines run a prompt twice that one prefills and another decodes: on a busy machine so may be
    # one of which the pool has all. The last token is computed for its logits wherever all before
    # it was loaded.
    ran = prometheus.number("sum(moonpool_prefill_seconds_count)")
    assert REQUESTS <= ran <= 2 * REQUESTS
    assert computed == PROMPTS * PROMPT_TOKENS + (ran - PROMPTS)
    # And one of both has looked it up: what it found is what the gateway says.
    pool = prometheus.number('sum(moonpool_prompt_tokens_total{source="pool"})')
    assert pool == again - (REQUESTS - PROMPTS)
    assert prometheus.number("sum(moonpool_prompts_total)") == REQUESTS
    whole = prometheus.number('sum(moonpool_prompts_total{miss="whole"})')
    assert whole == REQUESTS - PROMPTS
