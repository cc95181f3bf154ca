"""`moonpool plan` says what a trace has in it, and what is wrong with one, in a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.cli.main import main

SMALL = ["--prefill", "1", "--decode", "1"]
TRACE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [0, 1, 2]}
{"timestamp": 4000, "input_length": 1500, "output_length": 30, "hash_ids": [0, 1, 3]}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return path


def test_it_tells_of_the_load_and_of_what_reuse_could_bring(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(trace)]) == 0
    said = capsys.readouterr().out
    assert "2 in 4 s, 0.25 a second" in said and "1,300 tokens on average" in said
    assert f"{1024 / 2600:.1%} of prompt tokens" in said
    assert "prefill of Meta-Llama-3-8B on 1 x H100-SXM" in said
    assert "50.0% of prompts that have something to fetch" in said and "TCP 10 Gb/s" in said


def test_figures_of_few_requests_and_short_times_are_told_as_such(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(trace)]) == 0
    said = capsys.readouterr().out
    assert "figures of 2 requests: what is told at p99 is about the longest" in said
    (line,) = (one for one in said.splitlines() if one.startswith("  nothing reused"))
    assert 0.05 < float(line.split()[2]) < 0.2, "and not 0 s"
    trace.write_text(TRACE.splitlines()[0])
    assert main(["plan", str(trace)]) == 0
    said = capsys.readouterr().out
    assert "requests   1\n" in said and "figures of 1 request:" in said
    assert main(["plan", "bimodal"]) == 0
    assert "figures of" not in capsys.readouterr().out


def test_gpus_of_several_machines_are_told_to_be_taken_for_one(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", str(trace), "--model", "deepseek-v3", "--tensor-parallel"]
    assert main([*command, "16"]) == 0
    assert "16 GPUs are taken to be linked as those of one machine" in capsys.readouterr().out
    assert main([*command, "8", "--gpu", "h200"]) == 0
    assert "as those of one machine" not in capsys.readouterr().out


def test_as_json_it_says_the_same(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(trace), "--json", "--model", "llama-3-70b", "--gpu", "a100"]
    assert main([*command, "--tensor-parallel", "8"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["load"]["requests"] == 2
    assert said["load"]["hit_rate_max"] == pytest.approx(1024 / 2600)
    assert said["ceiling"]["prefill_least_s"] < said["ceiling"]["prefill_s"]
    assert [one["fabric"] for one in said["ceiling"]["fetches"]][-1] == "TCP 10 Gb/s"


def test_a_trace_without_reuse_is_told_that_a_pool_gives_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,700,5\n")
    assert main(["plan", str(path)]) == 0
    assert "a pool has nothing to give here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--model", "gpt-9"], "--model gpt-9: is one of llama-3-8b, "),
        (["--gpu", "tpu"], "--gpu tpu: is one of a100, "),
        (["--tensor-parallel", "3"], "tensor_parallel 3 does not divide Meta-Llama-3-8B"),
        (["--model", "llama-3-70b"], "does not fit 1 x H100-SXM: take 2"),
        (["--format", "azure"], "trace.jsonl:1: TIMESTAMP is not there"),
        (["--prefill", "2"], "--prefill: is of a simulated cluster: give --prefill N and --decode"),
        (["--dram", "1GiB"], "--dram: is of a simulated cluster"),
        (["--compare"], "--compare: is of a simulated cluster"),
        (["--prefill", "0", "--decode", "1"], "prefill.engines = 0: wants a whole number from 1"),
        ([*SMALL, "--dram", "1 apple"], "--dram = '1 apple': write a size like"),
        ([*SMALL, "--dram", "0", "--ssd", "1TiB"], "ssd without dram: blocks come to SSD through"),
        ([*SMALL, "--html", "not/there.html"], "--html not/there.html: there is no directory not"),
        ([*SMALL, "--fabric", "rdma"], "--fabric rdma: is one of nvlink-3, "),
        ([*SMALL, "--policy", "best"], "--policy best: is one of ours, random"),
        (["--racks", "2"], "--racks: is of a simulated cluster"),
        (["--nvlink-bytes-per-second", "1e9"], "--nvlink-bytes-per-second: is of a simulated"),
        ([*SMALL, "--racks", "2", "--domains", "3"], "domains: 3 in 2 racks: as many in each"),
        ([*SMALL, "--cross-rack-bytes-per-second", "1e9"], "1e+09: there is one rack"),
        ([*SMALL, "--nvlink-bytes-per-second", "1e9"], "1e+09: there is no NVLink domain"),
        ([*SMALL, "--fail", "decode:0@1.2.3"], "--fail decode:0@1.2.3: wants ROLE:N@T or ROLE"),
        (
            [*SMALL, "--fail", "decode:0@50"],
            "a failure at 50 s meets nobody: the last request comes",
        ),
        ([*SMALL, "--ttft", "0"], "ttft = 0.0: wants a number from 0.001"),
        (["--duration", "5"], "--duration: is of a load made up"),
        (["--rate", "0"], "--rate = 0.0: wants a number from 1e-06"),
        (["--rate", "nan"], "--rate = nan: wants a number from 1e-06"),
        (["--rate", "1e-300"], "--rate = 1e-300: wants a number from 1e-06"),
        (["--seed", "-1"], "--seed = -1: wants a whole number from 0"),
        (["--tensor-parallel", "-1"], "which has 32 heads and 8 KV heads: take one of 1, 2, 4, 8"),
        ([*SMALL, "--html", "/"], "--html /: is a directory: name a file"),
        (["--cluster", "not-there.toml"], "not-there.toml: No such file or directory"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    trace: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(trace), *arguments]) == 2
    said = capsys.readouterr()
    assert why in said.err and len(said.err.splitlines()) == 1 and not said.out


def test_requests_that_come_all_at_once_are_refused_to_a_cluster_before_it_is_simulated(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text(TRACE.replace("4000", "0"))
    assert main(["plan", str(trace), *SMALL]) == 2
    said = capsys.readouterr()
    assert "trace.jsonl: all requests come at one time: no rate can be asked" in said.err
    assert not said.out
    assert main(["plan", str(trace)]) == 0


def test_options_of_a_load_made_up_are_named_as_they_are_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "multi-turn", "--duration", "inf"]) == 2
    assert "--duration = inf: wants a number from 0.001" in capsys.readouterr().err


def test_a_load_made_up_has_no_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "bimodal", "--format", "azure"]) == 2
    said = capsys.readouterr()
    assert "--format: is of a file, and bimodal is a load made up" in said.err and not said.out


def test_a_name_that_is_neither_file_nor_load_is_told_with_the_loads_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "multiturn"]) == 2
    assert "multiturn: no such file, and no load made up: bimodal, " in capsys.readouterr().err


def test_a_line_that_is_wrong_is_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(TRACE + '{"timestamp": 5000, "input_length": "9"}\n')
    assert main(["plan", str(trace)]) == 2
    assert "trace.jsonl:3: input_length = '9': wants a whole number" in capsys.readouterr().err


def test_without_a_cluster_no_compiler_is_loaded(trace: Path) -> None:
    script = (
        "import sys; from kvstore.cli.main import main; main(['plan', sys.argv[1]]);"
        "sys.exit('numba' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(trace)], timeout=60, check=False)
    assert ran.returncode == 0
