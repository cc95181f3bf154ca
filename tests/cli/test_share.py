"""`moonpool share` on the command line."""

from __future__ import annotations

import pytest

from kvstore.cli.main import main
from tests.nodes import NodeProcess, node

__all__ = ["node"]


def test_what_is_shown_is_said_to_be_what_the_node_has_heard(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["share", "--dir", str(node.directory)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "as this node knows it, which takes a change up within a few seconds"


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "1e9"])
def test_a_weight_that_is_none_is_named_by_its_option(
    weight: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["share", "default", "--weight", weight]) == 2
    assert capsys.readouterr().err == f"moonpool: --weight {float(weight):g}: write 0.001 to 1000\n"
