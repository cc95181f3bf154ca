"""Typed errors across gRPC: each class has one status code, and travels with its name.

Trailing metadata carries the class and, for what may be retried, when; the message travels as it
is. What is not one of our errors leaves as INTERNAL with no text of its own: an exception's words
may hold what a caller must not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from kvstore import errors
from kvstore.errors import KVStoreError, Rejected, Unavailable

ERROR_KEY, RETRY_KEY = "moonpool-error", "moonpool-retry-after-ms"
RETRY_MS_MAX = 60_000  # that a caller is kept away for, whatever a server says
_RETRY_DIGITS_MAX = 9

_CODES: dict[type[KVStoreError], grpc.StatusCode] = {
    errors.UnknownNamespace: grpc.StatusCode.NOT_FOUND,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.SpecMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.AlreadyWritten: grpc.StatusCode.ALREADY_EXISTS,
    errors.Lapsed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Rejected: grpc.StatusCode.UNAVAILABLE,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Denied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Broken: grpc.StatusCode.INTERNAL,
}


def code_of(error: KVStoreError) -> grpc.StatusCode:
    """The status code of the error's class, or of the nearest class above it."""
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


def trailers_of(error: KVStoreError) -> tuple[tuple[str, str], ...]:
    # A class that callers do not have travels as the nearest one they do.
    kind = next(k for k in type(error).__mro__ if getattr(errors, k.__name__, None) is k)
    found = [(ERROR_KEY, kind.__name__)]
    if isinstance(error, Rejected):
        found.append((RETRY_KEY, str(error.retry_after_ms)))
    return tuple(found)


def refuse(context: Any, error: KVStoreError) -> None:
    """End a call with the error's status, once its method returns.

    Not by `context.abort`: the context keeps what that raises, and with its traceback the request,
    in a cycle that only the garbage collector ends.
    """
    context.set_code(code_of(error))
    context.set_details(str(error))
    context.set_trailing_metadata(trailers_of(error))


def raised_by(error: grpc.RpcError, server: str) -> KVStoreError:
    """The typed error that a failed call stands for."""
    trailers: dict[str, str] = dict(error.trailing_metadata() or ())
    retry = trailers.get(RETRY_KEY, "0")
    retry_ms = int(retry[:_RETRY_DIGITS_MAX]) if retry.isdecimal() else 0
    kind, code = trailers.get(ERROR_KEY, ""), int(error.code().value[0])
    return error_of(kind, code, error.details() or "", retry_ms, server)


def error_of(kind: str, code: int, text: str, retry_ms: int, server: str) -> KVStoreError:
    """The error of a class by this name; where there is none, what a status code stands for. No
    server keeps anybody away for longer than `RETRY_MS_MAX`."""
    retry_ms = min(retry_ms, RETRY_MS_MAX)
    status = _STATUSES.get(code, grpc.StatusCode.UNKNOWN)
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, KVStoreError):
        error = found(text, retry_ms) if issubclass(found, Rejected) else found(text)
        error.answered = status is not grpc.StatusCode.DEADLINE_EXCEEDED
        return error
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(f"{server} did not answer within the deadline")
    if status is grpc.StatusCode.CANCELLED:
        return Unavailable(f"{server} stopped before it had answered")
    if status is grpc.StatusCode.UNAVAILABLE:
        hint = next((hint for words, hint in _HINTS.items() if words in text), "")
        return Unavailable(f"{server} cannot be reached: {text}{hint}")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.Overloaded(text) if "concurrent" in text.lower() else errors.Invalid(text)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return errors.Broken(
            f"{server} does not know this call: it is another kind of process than the one meant, "
            f"or of another version ({text})"
        )
    return errors.Broken(f"{server} failed: {status.name} {text}")


# A server that asks for TLS hangs up on who shows none, without a word; one that does not answers
# in what OpenSSL takes for another version of it. What HTTP/1 answers with are no frames of gRPC's.
_HINTS = {
    "Socket closed": "; if it serves over TLS, MOONPOOL_TLS_CA, _CERT and _KEY say what to show it",
    "WRONG_VERSION_NUMBER": "; it serves without TLS: unset MOONPOOL_TLS_CA, _CERT and _KEY for it",
    "Expected SETTINGS frame": "; it may speak HTTP, as a gateway does (`moonpool health "
    "http://HOST:PORT` asks one): a node, conductor or engine is at what its `ready` line says",
}
_STATUSES = {int(one.value[0]): one for one in grpc.StatusCode}


@contextmanager
def typed_errors(server: str) -> Iterator[None]:
    """Within it, a failed gRPC call raises its typed error."""
    try:
        yield
    except grpc.RpcError as error:
        raise raised_by(error, server) from error
