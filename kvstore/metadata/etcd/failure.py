"""What etcd means by a failed call: go elsewhere, ask for another token, or tell the caller.

Pure: from a status code and etcd's words to one of our errors. etcd's words name no value.
"""

from __future__ import annotations

import grpc

from kvstore.errors import Denied, InvariantError, KVStoreError, Overloaded, Unavailable
from kvstore.metadata.protocol import LeaseLost

Code = grpc.StatusCode

# Of this endpoint, now: a member that is down, cut off, without a leader, or shutting down.
_PASSING = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ABORTED}
_PASSING |= {Code.UNKNOWN, Code.INTERNAL}
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")
_NO_TOKEN = "user name is empty"  # none was wanted yet when it was asked for
_NO_USER = (_NO_TOKEN, "user name not found", "user name must not be empty")
_WRONG_USER = ("authentication failed", "permission denied", *_NO_USER)
_OPEN_TO_ALL = "authentication is not enabled"
_TOO_LARGE = "larger than max"
_NOBODY_THERE = "failed to connect to all addresses"  # so gRPC ends a call before it sends it


def passes(error: grpc.aio.AioRpcError) -> bool:
    """Whether another endpoint, or this one later, may answer the same call."""
    return error.code() in _PASSING and not wants_token(error)


def wants_token(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call was refused, and not done, for its token, or for want of one."""
    return error.code() is Code.UNAUTHENTICATED or _says(error, *_OLD_TOKEN, _NO_TOKEN)


def wants_no_token(error: grpc.aio.AioRpcError) -> bool:
    """Whether this etcd asks nobody who they are."""
    return _says(error, _OPEN_TO_ALL)


def never_sent(error: grpc.aio.AioRpcError) -> bool:
    """Whether no member can have heard of the call, let alone done it."""
    return error.code() is Code.UNAVAILABLE and _says(error, _NOBODY_THERE)


def too_large(error: grpc.aio.AioRpcError) -> bool:
    """Whether the reply had more bytes than we take."""
    return error.code() is Code.RESOURCE_EXHAUSTED and _says(error, _TOO_LARGE)


def compacted(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is Code.OUT_OF_RANGE


def lease_gone(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is Code.NOT_FOUND


def unreached(where: str, seconds: float, words: str) -> Unavailable:
    return Unavailable(f"etcd at {where} cannot be reached, tried for {seconds:g} s ({words})")


def unanswered(where: str, seconds: float, words: str) -> Unavailable:
    return Unavailable(
        f"etcd at {where} did not answer within {seconds:g} s ({words}); a change may or may not "
        "have been made"
    )


def meaning(error: grpc.aio.AioRpcError, where: str) -> KVStoreError:
    """For whoever made the call. `where` names the endpoint."""
    words = str(error.details())
    if lease_gone(error):
        return LeaseLost(f"etcd at {where}: {words}")
    if _says(error, *_NO_USER):
        return Denied(
            f"etcd at {where} asks for a user: set MOONPOOL_ETCD_USER and MOONPOOL_ETCD_PASSWORD"
        )
    if error.code() is Code.PERMISSION_DENIED or _says(error, *_WRONG_USER):
        return refused(where, words)
    if wants_token(error):
        return refused(where, words)
    if error.code() is Code.RESOURCE_EXHAUSTED:
        return Overloaded(f"etcd at {where} has no room: {words}", 1_000)
    if error.code() is Code.INVALID_ARGUMENT:
        return InvariantError(f"etcd at {where} finds our call wrong: {words}")
    return Unavailable(f"etcd at {where}: {error.code().name.lower()}: {words}")


def refused(where: str, words: str) -> Denied:
    return Denied(
        f"etcd at {where} refuses this user: {words}; look at MOONPOOL_ETCD_USER and "
        "MOONPOOL_ETCD_PASSWORD, and give that user a role with readwrite on moonpool/CLUSTER/"
    )


def _says(error: grpc.aio.AioRpcError, *phrases: str) -> bool:
    words = str(error.details())
    return any(phrase in words for phrase in phrases)
