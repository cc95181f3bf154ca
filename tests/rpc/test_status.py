"""Typed errors arrive as they were raised: class, message, and when to retry."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kvstore import errors
from kvstore.errors import Broken, Invalid, KVStoreError, Overloaded, Rejected, Unavailable
from kvstore.metadata.bounds import BadKey
from kvstore.rpc.status import (
    ERROR_KEY,
    RETRY_KEY,
    code_of,
    raised_by,
    refuse,
    typed_errors,
)

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, KVStoreError) and kind is not KVStoreError
]


class Failure(grpc.RpcError):
    """What gRPC raises at a caller."""

    def __init__(self, code: grpc.StatusCode, text: str, trailers: Any = ()) -> None:
        self._code, self._text, self._trailers = code, text, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> Any:
        return self._trailers


class Context:
    """A call's context, as a server gives it to a method."""

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, text: str) -> None:
        self.text = text

    def set_trailing_metadata(self, trailers: Any) -> None:
        self.trailers = trailers

    def failure(self) -> Failure:
        return Failure(self.code, self.text, self.trailers)


def travelled(error: KVStoreError) -> KVStoreError:
    context = Context()
    refuse(context, error)
    assert context.code is not grpc.StatusCode.OK
    return raised_by(context.failure(), "n")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_arrives_as_itself(kind: type[KVStoreError]) -> None:
    sent = kind("what and why", 250) if issubclass(kind, Rejected) else kind("what and why")
    found = travelled(sent)
    assert type(found) is kind and str(found) == "what and why"
    if isinstance(found, Rejected):
        assert found.retry_after_ms == 250


@pytest.mark.parametrize("said", ["9" * 5_000, "86400000", "soon", "-5", ""])
def test_no_server_keeps_anybody_away_for_longer_than_a_minute(said: str) -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    found = raised_by(Failure(code, "full", {ERROR_KEY: "Overloaded", RETRY_KEY: said}), "n")
    assert isinstance(found, Overloaded) and 0 <= found.retry_after_ms <= 60_000


def test_a_class_that_callers_do_not_have_arrives_as_the_one_above_it() -> None:
    assert type(travelled(BadKey("the key is empty"))) is Invalid
    assert code_of(BadKey("")) is grpc.StatusCode.INVALID_ARGUMENT


def test_failures_of_grpc_itself_are_typed_too() -> None:
    code = grpc.StatusCode
    for failure, kind, words in (
        (Failure(code.DEADLINE_EXCEEDED, "Deadline Exceeded"), Unavailable, "within the deadline"),
        (Failure(code.UNAVAILABLE, "connection refused"), Unavailable, "connection refused"),
        (Failure(code.CANCELLED, "CANCELLED"), Unavailable, "stopped before it had answered"),
        (Failure(code.RESOURCE_EXHAUSTED, "Concurrent RPC limit"), Overloaded, "limit"),
        (Failure(code.RESOURCE_EXHAUSTED, "larger than max (9 vs. 8)"), Invalid, "9 vs. 8"),
        (Failure(code.UNAVAILABLE, "Socket closed"), Unavailable, "over TLS, MOONPOOL_TLS_CA"),
        (
            Failure(
                code.UNAVAILABLE, "last error: Failed parsing HTTP/2 (Expected SETTINGS frame)"
            ),
            Unavailable,
            "moonpool health http://HOST:PORT",
        ),
        (Failure(code.UNIMPLEMENTED, "no method"), Broken, "another kind of process"),
        (Failure(code.INTERNAL, "oops"), Broken, "INTERNAL"),
        (Failure(code.INTERNAL, "x", (("moonpool-error", "Exception"),)), Broken, "x"),
        (Failure(code.INTERNAL, "x", (("moonpool-error", "annotations"),)), Broken, "x"),
    ):
        with pytest.raises(kind, match=words), typed_errors("n"):
            raise failure
