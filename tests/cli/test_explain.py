"""`moonpool explain`: by which ids a request is found."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kvstore.cli.main import main
from kvstore.rpc.status import ERROR_KEY
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.doubles import Double, serving

DOWN = "127.0.0.1:1"  # nobody listens there


class Remembers(Double):
    """One request, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_of: list[str] = []

    def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainReply:
        self.asked_of.append(request.request_id)
        if request.request_id != "cmpl-55669b2cce54-0":
            context.set_trailing_metadata(((ERROR_KEY, "Invalid"),))
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"{request.request_id} is not known here"
            )
        return pb.ExplainReply(sentence="it was sent there")


@pytest.mark.parametrize("name", ["cmpl-55669b2cce54-0", "cmpl-55669b2cce54"])
def test_a_request_is_found_by_its_answers_id_too(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    double = Remembers()
    with serving(double):
        assert main(["explain", name, "--conductor", double.address]) == 0
        assert "it was sent there" in capsys.readouterr().out
        assert main(["explain", "another", "--conductor", double.address]) == 3
        assert "no conductor remembers another: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cmpl-55669b2cce54-0", "cmpl-55669b2cce54"])
def test_it_is_found_by_either_while_another_conductor_is_down(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    double = Remembers()
    with serving(double):
        both = ["--conductor", DOWN, "--conductor", double.address]
        assert main(["explain", name, *both]) == 0
        assert "it was sent there" in capsys.readouterr().out


def test_where_one_is_down_and_the_others_know_nothing_that_is_said_of_the_id_that_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    double = Remembers()
    with serving(double):
        assert main(["explain", "another", "--conductor", DOWN, "--conductor", double.address]) == 1
    said = capsys.readouterr().err
    assert DOWN in said and f"{double.address} says that another is not known here" in said
    assert double.asked_of == ["another", "another-0"]
