"""The committed gRPC stubs are what `proto/` generates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tree

STUBS = tree.ROOT / tree.GENERATED
BY_HAND = "__init__.py"


def test_stubs_are_what_proto_generates_byte_for_byte(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools, which has protoc, is not installed")
    command = [sys.executable, str(tree.ROOT / "proto" / "generate.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {
        path.name: path.read_bytes()
        for path in STUBS.iterdir()
        if path.is_file() and path.name != BY_HAND
    }
    assert made, "protoc wrote nothing"
    assert sorted(made) == sorted(committed)
    stale = [name for name in made if made[name] != committed[name]]
    assert not stale, f"run `make proto`: {', '.join(stale)} is not what proto/ says"
