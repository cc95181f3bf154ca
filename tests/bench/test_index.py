"""The index bench names every holder of what it made up, and its figures are of what it did."""

from __future__ import annotations

import json

import pytest

from bench import __main__ as command
from bench import index

BLOCKS = 8 * index.CHAIN


def test_queries_are_answered_for_every_holder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"QUERIES": 500, "SINGLY": 100, "NODES": 40}.items():
        monkeypatch.setattr(index, name, value)
    # So small an index fits what the process had and gave back before: its memory does not grow.
    grows = iter([10_000_000, 10_000_000 + 20 * BLOCKS])
    monkeypatch.setattr(index, "resident_bytes", lambda: next(grows))
    command.main(["index", "--json", "--runs", "2", "--blocks", str(BLOCKS)])
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    many, memory, singly, hot = said["rows"]
    assert [row["counted"] for row in said["rows"]] == [True, True, False, False]
    assert {row["sizes"]["blocks"] for row in said["rows"]} == {BLOCKS}
    assert 1 < many["also"]["holders_per_query"] < 2 and hot["also"]["holders_per_query"] == 40
    assert many["ratio"] == pytest.approx(many["value"] / 500_000, rel=1e-2)
    assert memory["name"] == f"bytes a block, {BLOCKS} blocks"
    assert (memory["value"], memory["ratio"]) == (20.0, 1.2)
    assert 10 < memory["also"]["bytes_per_holder"] < 20, "some blocks have several holders"
    assert min(row["value"] for row in (many, singly, hot)) > 0
    assert said["ratio"] == min(many["ratio"], memory["ratio"])
