"""Asks several servers the same at once: none that is silent is waited for before another."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import grpc

from kvstore.errors import Unavailable
from kvstore.rpc.lasting import LastingStub
from kvstore.rpc.status import raised_by
from kvstore.rpc.threads import threads_for

Call: TypeAlias = Any  # grpc has no types


def ask_at_once(
    servers: Iterable[LastingStub], begin: Callable[[Any], Call]
) -> Iterator[tuple[str, Any]]:
    """What each says, by its address, or the typed error of its call: the first that is over first.
    `begin` makes the call, which is to have a timeout. One that is refused with what was shown
    before is asked again."""
    calls, over = dict[Call, tuple[LastingStub, Any]](), queue.SimpleQueue[Call]()

    def ask(one: LastingStub) -> None:
        stub = one.now
        with suppress(Unavailable), threads_for(one.address):
            call = begin(stub)
            calls[call] = one, stub
            call.add_done_callback(over.put)

    for one in servers:
        ask(one)
    while calls:
        call = over.get()
        one, stub = calls.pop(call)
        try:
            yield one.address, call.result()
        except grpc.FutureCancelledError:
            continue  # its channel was closed
        except grpc.RpcError as error:
            if one.renewed(stub):
                ask(one)
            else:
                yield one.address, raised_by(error, one.address)
