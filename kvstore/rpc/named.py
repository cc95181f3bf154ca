"""What a call costs by how many blocks it names, in further calls.

One call of an engine names one block, another 16,384, and whoever serves looks each of them up. Of
a node's loop a call takes 0.3 to 0.45 ms, one more hash 0.9 us in a Match, 1.4 in an Exists, 1.6 in
an Open that finds none and 2.5 in one that does, and 4 to 9 in a Reserve, Seal or Abort. Of a
conductor's loop one more takes 0.2 us, which a gateway asks about for all requests of its tenant.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from kvstore.limits import (
    RPC_KEYS_MAX,
    RPC_NAMED_A_CALL,
    RPC_SCHEDULED_A_CALL,
    RPC_WRITTEN_A_CALL,
)

_WRITING = ("ReserveRequest", "SealRequest", "AbortRequest", "RemoveRequest", "RenewRequest")
_A_CALL = {
    **dict.fromkeys(_WRITING, RPC_WRITTEN_A_CALL),
    **dict.fromkeys(("PoolMatchRequest", "ScheduleRequest"), RPC_SCHEDULED_A_CALL),
}  # all others only look up


def further_calls(message: Any) -> int:
    """So many more calls are as dear as what this message names."""
    kind: Any = type(message)
    named = sum([len(getattr(message, name)) for name in _lists(kind)])
    a_call = _A_CALL.get(kind.__name__, RPC_NAMED_A_CALL)
    return min(named, 2 * RPC_KEYS_MAX) // a_call  # of longer lists the first look tells


@functools.cache
def _lists(kind: Any) -> Sequence[str]:
    """What messages of a kind have as lists of hashes, keys and handles."""
    described = getattr(kind, "DESCRIPTOR", None)
    fields = described.fields if described is not None else ()
    return [one.name for one in fields if one.type == one.TYPE_BYTES and one.default_value == []]
