"""`moonpool stat` on the command line: what it prints of what callers have named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvstore.cli.main import main
from tests.nodes import SPEC, Caller, NodeProcess, caller, node, running

__all__ = ["caller", "node"]

CONTROLS = "\x1b[2J\x1b]0;mine\x07\nnode 0: all is well\x9b"


def test_what_a_tenant_names_moves_no_terminal(
    node: NodeProcess, caller: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in (CONTROLS, "größer/modèle-7B"):
        caller.register(replace(SPEC, model=model))
    assert main(["stat", "--node", node.address]) == 0
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.split("\n"))
    assert ascii(CONTROLS) in printed and "größer/modèle-7B: 0 blocks" in printed
    assert main(["stat", "--node", node.address, "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip("\n").isprintable()
    assert CONTROLS in [one["model"] for one in json.loads(printed)["namespaces"]]


def test_of_a_node_that_has_done_nothing_yet_it_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running() as idle:
        assert main(["stat", "--node", idle.address]) == 0
    assert capsys.readouterr().out.endswith("\nsince its start: nothing yet\n")
