"""`moonpool plan` with a cluster: it simulates, and says the same in text, JSON and on a page."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvstore.cli import compiling, plan_simulate
from kvstore.cli.main import main
from kvstore.cli.plan_simulate import _write
from tests.nodes import eventually

MADE = ["plan", "multi-turn", "--rate", "2", "--duration", "20"]
SMALL = ["--prefill", "2", "--decode", "1"]
SOON = ["--ttft", "2"]  # a load is repeated for ten times as long

CLUSTER = """\
model = "llama-3-8b"
fabric = "rdma-100"
dram = "8GiB"
ttft = 5

[[pool]]
role = "prefill"
engines = 1
gpu = "l40s"

[[pool]]
role = "decode"
engines = 2
gpu = "h100"
"""


class Told(NamedTuple):
    """What one question brings."""

    said: str
    page: str


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    path = tmp_path_factory.mktemp("told") / "plan.html"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*MADE, *SMALL, *SOON, "--html", str(path)]) == 0
    return Told(said.getvalue(), path.read_text())


def test_it_answers_what_a_planner_asks(told: Told) -> None:
    said = told.said
    assert "simulated: 2 prefill on 1 x H100-SXM + 1 decode" in said
    assert "100.0% of requests (2 s to the first token, 100 ms each)" in said
    assert "requests/s with 90% in time" in said
    assert "1 prefill    2 decode" in said and "DRAM a host" in said
    assert "every one does both" in said and "disaggregat" in said
    assert "TTFT p50" in said and "every one both" in said
    assert "GPUs of an engine, each phase alone" in said and "SSD  a host" in said
    assert "There is enough at" in said and "ours decides" in said


def test_what_is_said_of_compiling_ends_with_the_first_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "STILL_SECONDS", 0.001)
    monkeypatch.setattr(plan_simulate.replay, "compiled", lambda: False)
    said: list[str] = []

    def still() -> bool:
        said.append(capsys.readouterr().err)
        return "still compiling the simulator, 0 s\n" in "".join(said)

    def answer(*given: Any) -> str:
        eventually(still)
        given[-1]()
        capsys.readouterr()
        given[-1]()
        assert not capsys.readouterr().err
        return "answered"

    monkeypatch.setattr(plan_simulate, "answer", answer)
    args = argparse.Namespace(policy=None, compare=False, seed=1)
    assert plan_simulate.simulated(args, Any, Any) == "answered"
    assert said[0].startswith("compiling the simulator: one to several minutes")


def test_it_says_what_goes_between_racks(capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--racks", "2", "--cross-rack-bytes-per-second", "2e9", "--domains", "2"]
    assert main([*MADE, *SMALL, *SOON, *places]) == 0
    said = capsys.readouterr().out
    assert "in 2 racks, in 2 NVLink domains; RDMA 200 Gb/s" in said
    assert "GB over NVLink" in said and "GB between racks" in said


def test_it_says_what_went_between_hosts_where_all_are_in_one_rack(told: Told) -> None:
    (line,) = [one for one in told.said.splitlines() if "moved between hosts" in one]
    assert "GB over links" in line and "; links carry " in line and "% of what they can" in line
    assert "between racks" not in line


def test_what_hosts_that_decode_keep_is_not_handed_over_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agents = ["plan", "agentic", "--rate", "1", "--duration", "20", "--json", *SMALL, *SOON]
    carried = []
    for memory in ([], ["--decode-dram", "256GiB"]):
        assert main([*agents, *memory]) == 0
        carried.append(json.loads(capsys.readouterr().out)["simulated"]["outcome"]["carried"])
    assert carried[1]["link"] < 0.5 * carried[0]["link"]


def test_as_json_it_is_one_object_and_the_same_each_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [*MADE, *SMALL, *SOON, "--json", "--compare"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert main(command) == 0
    assert capsys.readouterr().out == first
    said = json.loads(first)["simulated"]
    assert said["outcome"]["share"] == 1.0 and said["outcome"]["ended"]["served"] > 20
    assert [one["policy"] for one in said["curves"]][:3] == ["ours", "random", "round-robin"]
    assert len(said["curves"]) == 10 and said["curves"][0]["highest"] > 2
    assert [one["prefill"] for one in said["splits"]] == [1, 2]
    assert said["memory"][0]["dram_bytes"] == 0 and said["memory"][0]["hits"] == 0
    assert [one["ssd_bytes"] for one in said["ssd"]] == sorted(
        {one["ssd_bytes"] for one in said["ssd"]}
    )
    assert said["together"]["highest"] > 2 and said["together"]["outcome"]["share"] == 1.0
    phases = said["parallelism"]["tried"]
    assert [one["tensor_parallel"] for one in phases] == [1, 2, 4, 8] * 2
    assert said["parallelism"]["highest"] >= 0.9 * said["curves"][0]["highest"]
    assert said["why"] and said["share_wanted"] == 0.9


def test_a_file_describes_the_cluster_and_options_replace_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    command = [*MADE, "--cluster", str(path), "--policy", "raw-mooncake", "--decode", "3"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "1 prefill on 1 x L40S + 3 decode on 1 x H100-SXM; RDMA 100 Gb/s" in said
    assert "mooncake decides" in said and "(5 s to the first token" in said
    assert "split otherwise" not in said, "engines of two kinds"
    assert main([*command, "--gpu", "h100"]) == 2
    assert "--gpu: " in capsys.readouterr().err


def test_an_engine_that_dies_in_a_file_dies_however_many_others_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f'{CLUSTER}\n[[failure]]\nrole = "decode"\nengine = 1\nat = 5\n')
    assert main([*MADE, "--cluster", str(path), "--prefill", "2"]) == 0
    assert "did no engine die" in capsys.readouterr().out
    assert main([*MADE, "--cluster", str(path), "--decode", "1"]) == 2
    assert "decode engine 1: there are 1" in capsys.readouterr().err


def test_what_the_same_engines_would_do_otherwise_is_held_against_healthy_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.html"
    asked = ["--prefill", "1", "--decode", "1", *SOON, "--fail", "decode:0@5", "--html", str(path)]
    assert main([*MADE, *asked]) == 0
    page = path.read_text()
    assert page.count("each does both, chunks of") == page.count(", and none dies") - 2 > 0
    said = capsys.readouterr().out.splitlines()
    rows = {line[:20].strip(): line.split()[-1] for line in said if line}
    assert rows["did no engine die"] == rows["as asked"] == rows["every one both"] == "100.0%"


def test_a_rate_that_is_asked_for_is_the_rate_that_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"  # whose times are rounded, as those that are published
    line = '{{"timestamp": {}, "input_length": 700, "output_length": 10, "hash_ids": [0, 1]}}\n'
    path.write_text("".join(line.format(at) * 10 for at in (0, 3_000)))
    assert main(["plan", str(path), *SMALL, *SOON, "--rate", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["load"]["rate"] == pytest.approx(5)
    assert said["simulated"]["outcome"]["rate"] == pytest.approx(5)


def test_engines_that_switch_are_told_of_and_how_often_they_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["plan", "bimodal", "--rate", "6", "--duration", "100", "--elastic"]
    command += ["--prefill", "1", "--decode", "3", "--ttft", "3", "--gpu", "l40s"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "simulated: 1 elastic prefill on 1 x L40S + 3 elastic decode" in said
    assert "engines switched 1 times" in said or "engines switched 2 times" in said
    assert main(["plan", "bimodal", "--elastic"]) == 2
    assert "--elastic: is of a simulated cluster" in capsys.readouterr().err


def test_who_says_no_targets_has_the_usual_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER.replace("ttft = 5\n", ""))
    assert main([*MADE, "--cluster", str(path)]) == 0
    assert "(30 s to the first token, 100 ms each)" in capsys.readouterr().out


def test_requests_that_come_all_at_once_have_no_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{"timestamp": 0, "input_length": 700, "output_length": 10, "hash_ids": [0, 1]}\n'
    path.write_text(line * 2)
    assert main(["plan", str(path), *SMALL]) == 2
    assert "no rate can be asked about" in capsys.readouterr().err
    assert main(["plan", str(path), *SMALL, "--rate", "2"]) == 2


def test_the_page_is_one_file_that_needs_no_other(told: Told) -> None:
    text = told.page
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org", "")
    assert "prefers-color-scheme: dark" in text
    assert "Meta-Llama-3-8B, 131,072 bytes of KV a token; 274.9 GB of DRAM for it" in text
    assert "within 2 s, and each after it within 100 ms" in text, "what in time is"
    begin = text.index("<svg")
    pictures = text[begin : text.rindex("</svg>") + 6]
    assert pictures.count("<svg") == pictures.count("</svg>") >= 4
    for one in pictures.split("</svg>")[:-1]:
        ElementTree.fromstring(one[one.index("<svg") :] + "</svg>")


def test_a_page_that_is_a_link_is_written_where_that_leads(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    page, link = tmp_path / "kept" / "plan.html", tmp_path / "latest.html"
    link.symlink_to(page)
    for text in ("one", "another"):
        _write(link, text)
        assert link.is_symlink() and page.read_text() == text
    assert sorted(tmp_path.rglob("*")) == sorted([page.parent, page, link])


def test_a_page_that_cannot_be_written_leaves_the_one_before_and_no_part_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.html"
    _write(path, "one \N{EN DASH}")
    assert path.read_bytes() == "one \N{EN DASH}".encode(), "in UTF-8, as it says of itself"

    def full(part: Path, text: str, **_: object) -> None:
        part.write_bytes(text[:1].encode())
        raise OSError("no space")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        _write(path, "another")
    assert path.read_bytes() == "one \N{EN DASH}".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_answers_are_told_though_the_page_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is gone by then, or its disk is full."""
    path = tmp_path / "plan.html"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "plan.html.part")

    monkeypatch.setattr(Path, "write_text", full)
    for form, word in (([], "simulated: 2 prefill"), (["--json"], '"simulated": {')):
        assert main([*MADE, *SMALL, *SOON, *form, "--html", str(path)]) == 1
        told = capsys.readouterr()
        assert word in told.out and "There is enough at" in told.out
        assert f"moonpool: --html {path}: {os.strerror(errno.ENOSPC)}\n" in told.err


def test_the_page_is_written_though_nobody_reads_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    path = tmp_path / "plan.html"
    monkeypatch.setattr(plan_simulate, "tell", gone)
    monkeypatch.setattr("kvstore.cli.main._has_no_reader", lambda told: told is sys.stdout)
    assert main([*MADE, *SMALL, *SOON, "--html", str(path)]) == 0
    assert path.read_text().endswith("</html>\n")
