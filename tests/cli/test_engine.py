"""`moonpool engine` on the command line, where things are not as it would have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.cli.main import main
from kvstore.engine.make_model import make_model


def test_an_engine_that_finds_no_node_serves_and_says_what_that_means(tmp_path: Path) -> None:
    model, nowhere = make_model(tmp_path / "tiny"), tmp_path / "nowhere"
    asked = ["engine", "--model", str(model), "--dir", str(nowhere), "--threads", "1"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "kvstore", *asked], stdout=subprocess.PIPE, stderr=log
        ) as engine,
    ):
        assert engine.stdout is not None
        try:
            assert b'"ready"' in engine.stdout.readline()
        finally:
            engine.terminate()
    said = (tmp_path / "log").read_text()
    assert (
        f"every prompt is computed whole until a node serves: no node has run in {nowhere}" in said
    )


def test_an_engine_that_is_to_serve_other_hosts_is_refused_before_it_looks_for_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["engine", "--model", str(tmp_path), "--listen", "0.0.0.0:7501"]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "--listen = '0.0.0.0:7501'" in said and "127.0.0.1" in said
    assert "--tls" not in said, "an engine has no such option"
