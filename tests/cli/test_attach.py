"""`moonpool attach` on the command line: what it refuses, and its codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.cli.main import main
from tests import tree
from tests.attach.pages import Pages, page
from tests.client.kv_events.publisher import Publisher

ENGINE = "http://127.0.0.1:8000,kv=tcp://127.0.0.1:5557"
Run = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "8000"], "wants an address like"),
        (["--engine", "http://h:1"], "give kv="),
        (["--engine", "http://h:1,kv=5557"], "kv= wants an endpoint like"),
        (["--engine", f"{ENGINE},replay=5558"], "replay= wants an endpoint like"),
        (["--engine", "http://h:1,kv=tcp://h"], "kv= wants an endpoint like tcp://127.0.0.1:5557"),
        (["--engine", "http://h:1,kv=tcp://h:99999"], "kv= wants an endpoint like"),
        (["--engine", "http://h:1,kv=ipc://"], "kv= wants an endpoint like"),
        (["--engine", "http://h:1,kv=tcp://*:5557"], "kv= wants the host by which it is reached"),
        (["--engine", f"{ENGINE},replay=tcp://*:5558"], "replay= wants the host by which"),
        (["--engine", f"{ENGINE},replay=tcp://h:x"], "replay= wants an endpoint like"),
        (["--engine", f"{ENGINE},key=x"], "'key=x' is none of kv=, replay=, topic="),
        (["--engine", f"{ENGINE},kv=tcp://h:1"], "'kv=tcp://h:1' is none of"),
        (["--engine", ENGINE, "--engine", ENGINE], "two have one address"),
        (["--engine", ENGINE, "--minutes", "0"], "--minutes 0: wants more than 0"),
        (["--engine", ENGINE, "--minutes", "nan"], "--minutes nan: wants"),
        (["--engine", ENGINE, "--ssd", "1TiB"], "--ssd: is of a pool that is told of: give --dram"),
        (["--engine", ENGINE, "--model", "llama-3-8b"], "--model: is of a pool"),
        (["--engine", ENGINE, "--kv-bytes-per-token", "9"], "--kv-bytes-per-token: is of a pool"),
        (["--engine", ENGINE, "--dram", "1GiB"], "give --model or --kv-bytes-per-token"),
        (["--engine", ENGINE, "--dram", "1GiB", "--model", "x"], "--model x: is one of"),
        (["--engine", ENGINE, "--fabric", "x"], "--fabric x: is one of"),
        (["--engine", ENGINE, "--trace", "/nowhere"], "/nowhere"),
        (["--engine", ENGINE, "--before", "/nowhere"], "--before /nowhere: cannot be read"),
        (
            ["--engine", ENGINE, "--dram", "1GiB", "--kv-bytes-per-token", "0"],
            "--kv-bytes-per-token 0: wants",
        ),
    ],
)
def test_what_is_wrong_is_named(options: list[str], said: str, capsys: Run) -> None:
    assert main(["attach", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_server_that_cannot_be_read_ends_it_with_1(capsys: Run) -> None:
    with Pages() as gone:
        url = gone.url
    assert main(["attach", "--engine", f"{url},kv=tcp://127.0.0.1:9"]) == 1
    assert f"{url}/metrics cannot be read" in capsys.readouterr().err


def test_a_fleet_of_which_nothing_is_asked_is_reported_on(capsys: Run) -> None:
    with Pages(page(queries=10.0, hits=4.0)) as pages, Publisher() as publisher:
        asked = ["attach", "--engine", f"{pages.url},kv={publisher.endpoint}", "--minutes", "0.01"]
        assert main([*asked, "--json", "--dram", "1GiB", "--model", "llama-3-8b"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["asked"]["queries"] == said["pool"]["tokens"] == 0
        assert said["notes"][0] == "nothing was asked of these servers in that time"
        assert main(asked) == 0
        assert "0  tokens of 0 prompts were asked for" in capsys.readouterr().out


def test_a_log_that_cannot_be_read_at_the_end_costs_no_report(capsys: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"prompt": 7}\n')
    with Pages(page(queries=10.0, hits=4.0)) as pages, Publisher() as publisher:
        asked = ["attach", "--engine", f"{pages.url},kv={publisher.endpoint}", "--minutes", "0.01"]
        assert main([*asked, "--requests", str(log)]) == 2
    said = capsys.readouterr()
    assert "0  tokens of 0 prompts" in said.out
    assert f"{log}:1: prompt_tokens is not there" in said.err


def test_ctrl_c_ends_it_with_the_report_of_what_was_seen() -> None:
    with Pages(page(queries=10.0, hits=4.0)) as pages, Publisher() as publisher:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kvstore", "-v", "attach", "--json"),
                *("--engine", f"{pages.url},kv={publisher.endpoint}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tree.ROOT,
            # Whoever runs this in the background may have it ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            assert process.stderr is not None
            assert any("counting: 1 servers" in line for line in process.stderr)
            pages.body = page(queries=30.0, hits=14.0)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=30.0)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert json.loads(said)["asked"]["queries"] == 20
