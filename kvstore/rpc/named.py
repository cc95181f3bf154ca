"""What a call costs by how many blocks it names, in further calls.

One call of an engine names one block, another 16,384, and whoever serves looks each of them up. Of
a node's loop a call takes 0.3 to 0.45 ms, one more hash 0.9 us in a Match, 1.4 in an Exists, 1.6 in
an Open that finds none and 2.5 in one that does, and 4 to 9 in a Reserve, Seal or Abort. Of a
conductor's loop one more takes 0.2 us, which a gateway asks about for all requests of its tenant,
and 0.8 us a request that it gives up.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from kvstore.limits import (
    RPC_GIVEN_UP_A_CALL,
    RPC_KEYS_MAX,
    RPC_NAMED_A_CALL,
    RPC_SCHEDULED_A_CALL,
    RPC_WRITTEN_A_CALL,
)

_WRITING = ("ReserveRequest", "SealRequest", "AbortRequest", "RemoveRequest", "RenewRequest")
_SCHEDULING = ("PoolMatchRequest", "ScheduleRequest", "ExplainRequest")
_A_CALL = {
    **dict.fromkeys(_WRITING, RPC_WRITTEN_A_CALL),
    **dict.fromkeys(_SCHEDULING, RPC_SCHEDULED_A_CALL),
    "GiveUpRequest": RPC_GIVEN_UP_A_CALL,
}  # all others only look up


def further_calls(message: Any) -> int:
    """So many more calls are as dear as what this message names."""
    a_call = _A_CALL.get(type(message).__name__, RPC_NAMED_A_CALL)
    return min(_named(message), 2 * RPC_KEYS_MAX) // a_call  # of longer lists the first look tells


def _named(message: Any) -> int:
    kind: Any = type(message)
    parts = [getattr(message, name) for name in _parts(kind) if message.HasField(name)]
    return sum([len(getattr(message, name)) for name in _lists(kind)]) + sum(map(_named, parts))


@functools.cache
def _lists(kind: Any) -> Sequence[str]:
    """What messages of a kind have as lists of hashes, keys, handles and ids."""
    fields = _fields(kind)
    texts = [one for one in fields if one.type in (one.TYPE_BYTES, one.TYPE_STRING)]
    return [one.name for one in texts if one.default_value == []]


@functools.cache
def _parts(kind: Any) -> Sequence[str]:
    """And the messages that they have within, of which there is one each."""
    parts = [one for one in _fields(kind) if one.message_type is not None]
    return [one.name for one in parts if one.default_value != []]


def _fields(kind: Any) -> Sequence[Any]:
    described = getattr(kind, "DESCRIPTOR", None)
    return described.fields if described is not None else ()
