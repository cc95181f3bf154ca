"""`moonpool health`: what it says of a process that is not the one meant."""

from __future__ import annotations

import pytest

from kvstore.cli import health
from kvstore.cli.main import main
from tests.nodes import NodeProcess, node
from tests.rpc.drops import saying

__all__ = ["node"]


def test_a_node_asked_as_a_gateway_is_told_of_and_how_to_ask_it(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", f"http://{node.address}"]) == 1
    said = capsys.readouterr().err
    assert (
        f"http://{node.address} does not speak HTTP" in said
        and "write HOST:PORT alone for a node" in said
    )
    assert main(["health", node.address]) == 0


def test_a_node_asked_as_a_conductor_is_told_of(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roles", "--conductor", node.address]) == 1
    said = capsys.readouterr().err
    assert f"{node.address} does not know this call: it is another kind of process" in said


@pytest.mark.parametrize(
    "begin", [b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 503 No\r\n\r\n"], ids=["ready", "not ready"]
)
def test_a_gateway_whose_answer_comes_by_drops_does_not_answer(
    begin: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "SECONDS", 0.3)
    with saying(begin, b"x", 40) as calling:
        address = f"http://{calling.host}:{calling.port}"
        assert main(["health", address]) == 1
    assert f"{address} does not answer: timed out" in capsys.readouterr().err
