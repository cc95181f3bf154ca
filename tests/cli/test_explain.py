"""`moonpool explain`: by which ids a request is found."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kvstore.cli.main import main
from kvstore.rpc.status import ERROR_KEY
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.doubles import Double, serving


class Remembers(Double):
    """One request, by its id."""

    def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainReply:
        if request.request_id != "cmpl-55669b2cce54-0":
            context.set_trailing_metadata(((ERROR_KEY, "Invalid"),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "it is not known here")
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
