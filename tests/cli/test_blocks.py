"""`moonpool get` and its kin on the command line: what a miss and a wrong address come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.cli.main import main
from tests.nodes import SPEC, NodeProcess, node

__all__ = ["node"]


def test_a_miss_leaves_the_file_as_it_was(
    node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, kept, none = tmp_path / "spec.json", tmp_path / "kept.bin", tmp_path / "none.bin"
    spec.write_text(SPEC.canonical())
    kept.write_bytes(b"of an earlier get")
    for file in (kept, none):
        asked = ["get", str(file), "--spec", str(spec), "--tokens", "1,2,3"]
        assert main([*asked, "--node", node.address]) == 3
    assert "the next is absent" in capsys.readouterr().out
    assert kept.read_bytes() == b"of an earlier get" and not none.exists()
