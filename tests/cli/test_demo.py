"""The demo, a sixth of it, exactly as a user runs it; and that its verdict can be no."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest

from kvstore.cli.demo.report import Report, Row
from kvstore.cli.demo.workload import Ask, Shape, Workload
from kvstore.cli.main import main
from kvstore.engine.control import Sample
from kvstore.gateway.request import Outcome

SHOWN_SECONDS = 120.0


def test_the_demo_reuses_kv_and_its_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    figures = tmp_path / "demo.json"
    ran = subprocess.run(
        [sys.executable, "-m", "kvstore", "demo", "--quick", "--json", str(figures)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    facts = json.loads(figures.read_text())
    assert facts["identical"] == facts["requests"] == 8
    assert len(facts["ttft_pool_ms"]) == len(facts["ttft_none_ms"]) == 8
    assert 0 < facts["hit_tokens"] < facts["query_tokens"]
    assert facts["hand_off_tokens"] > 0
    assert facts["control"]["block_changed_tokens"] >= 0.8
    assert facts["control"]["strip_ratio_median"] >= 100
    assert "random" in ran.stdout and "noise" in ran.stdout
    assert "identical   8/8" in ran.stdout
    assert "8 requests, each with the pool and without it\n" in ran.stdout
    assert "control: 8 of them again" in ran.stdout


def test_where_its_figures_cannot_go_it_says_so_before_it_starts_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, why in ((tmp_path, "is a directory"), (tmp_path / "no" / "f", "there is no")):
        assert main(["demo", "--json", str(path)]) == 2
        said = capsys.readouterr()
        assert f"--json {path}: {why}" in said.err and not said.out


def test_kept_it_shows_what_came_of_the_workload_on_every_chart_until_it_is_stopped() -> None:
    command = [sys.executable, "-m", "kvstore", "demo", "--quick", "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as demo:
        assert demo.stdout is not None
        try:
            said = next(line.decode() for line in demo.stdout if line.startswith(b"dashboard"))
            address = said.split()[1]
            nothing: list[str] = ["not asked yet"]
            end = time.monotonic() + SHOWN_SECONDS
            while nothing and time.monotonic() < end:
                with urllib.request.urlopen(
                    f"{address}board/charts", timeout=SHOWN_SECONDS
                ) as answer:
                    charts = json.load(answer)["charts"]
                nothing = [one["title"] for one in charts if not one["lines"]]
                time.sleep(0.5)
            assert not nothing, "these charts are empty"
        finally:
            demo.terminate()
    assert demo.returncode == 0


def test_the_workload_has_the_shape_it_promises() -> None:
    asks = list(Workload(range(15, 2048), Shape(), 0).requests(lambda ask: [1] * ask.new_tokens))
    assert len(asks) == Shape().requests >= 40
    assert all(500 <= len(ask.prompt) <= 4_000 for ask in asks)
    assert len({ask.id for ask in asks}) == len(asks)
    chats = [ask for ask in asks if ask.id.startswith("chat-0.")]
    for earlier, later in pairwise(chats):
        turn = (*earlier.prompt, *[1] * earlier.new_tokens)
        assert later.prompt[: len(turn)] == turn, "a turn begins with the turn before and its reply"


def test_one_wrong_token_or_a_blind_control_is_a_failed_demo() -> None:
    right, wrong = Outcome(tokens=[1, 2]), Outcome(tokens=[1, 3])
    ask, sharp = Ask("a", "cold", (1,) * 500), Sample(True, 1e-5, 1.0)
    assert Report([Row(ask, right, right, [1, 2])], [sharp]).good
    assert not Report([Row(ask, wrong, right, [1, 2])], [sharp]).good
    assert not Report([Row(ask, right, wrong, [1, 2])], [sharp]).good
    assert not Report([Row(ask, right, right, [1, 2])], [Sample(False, 1e-5, 1.0)]).good
    assert not Report([Row(ask, right, right, [1, 2])], [Sample(True, 1e-5, 1e-4)]).good
    assert not Report([Row(ask, right, right, [1, 2])], []).good
