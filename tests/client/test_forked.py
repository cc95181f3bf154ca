"""A client is of the process that made it: a copy of that has no use of it, and harms none."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress

import pytest

from kvstore.client import AsyncClient, Client, Miss
from kvstore.errors import Unavailable
from kvstore.wire.v1 import kv_pb2 as pb
from tests.client.kv import Cache, spec_of
from tests.client.stored import TOKENS, Stored

SPEC = spec_of("forked")
ENDS_SECONDS = 10  # a copy that waits for what never comes

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_a_fork(call: Callable[[], object]) -> None:
    """Made in a copy of this process, which is to end by itself."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ENDS_SECONDS)
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the call waited for ever" if os.WIFSIGNALED(status) else "it failed"


def test_no_process_is_given_the_answer_to_what_its_copy_asked(
    client_of: Callable[..., Client],
) -> None:
    client = client_of(SPEC)
    stored, other = Stored(client), client.chain(range(1_000, 1_000 + TOKENS))
    target = Cache(SPEC, TOKENS)
    session = client.connection.link().session
    asked = pb.OpenRequest(
        session=session, namespace=SPEC.digest, group=0, hashes=stored.chain.hashes
    )

    def ask() -> None:
        with suppress(Unavailable):
            client.connection.begin("Open", asked)

    in_a_fork(ask)
    assert client.get(other, target.memory(client)).miss is Miss.ABSENT
    assert target.untouched(), "it was given the KV of another prompt"
    assert stored.got().tokens == TOKENS


def test_a_copy_that_gives_up_windows_leaves_their_answer_to_the_process_that_asked(
    client_of: Callable[..., Client],
) -> None:
    client = client_of(SPEC, deadline_seconds=5.0)
    windows = client.windows(client.chain(range(2_000, 2_000 + TOKENS)))
    in_a_fork(windows.abort)
    assert windows.writer.granted.all()
    windows.abort()


def test_in_a_copy_of_its_process_all_is_a_miss_at_once(client_of: Callable[..., Client]) -> None:
    client = client_of(SPEC)
    stored = Stored(client)

    def ask() -> None:
        assert client.match(stored.chain).miss is Miss.UNREACHABLE
        assert client.get(stored.chain, stored.source.memory(client)).tokens == 0
        with pytest.raises(Unavailable, match="fork"):
            client.register()  # over gRPC, whose threads are not there
        with pytest.raises(Unavailable, match="fork"):
            client.writer(stored.chain)

    in_a_fork(ask)
    with client.connection._lock:  # as while another thread begins a session
        in_a_fork(ask)
    assert stored.got().tokens == TOKENS


def test_blocks_that_were_open_come_to_the_process_that_opened_them(
    client_of: Callable[..., Client],
) -> None:
    client = client_of(SPEC)
    stored, target = Stored(client), Cache(SPEC, TOKENS)
    with client.reader(stored.chain, target.memory(client)) as reader:

        def read() -> None:
            reader.poll()
            reader.close()

        in_a_fork(read)
        assert reader.poll()
        assert reader.tokens == TOKENS
    assert target.holds(stored.truth)


def test_a_copy_that_closes_its_client_ends_no_call_of_the_process(
    client_of: Callable[..., Client],
) -> None:
    client = client_of(SPEC)
    stored, link = Stored(client), client.connection.link()
    in_a_fork(client.close)
    assert stored.got().tokens == TOKENS
    assert client.connection.link() is link


def test_no_event_loop_waits_for_threads_that_a_copy_of_its_process_has_not(
    client_of: Callable[..., Client],
) -> None:
    client = AsyncClient(client_of(SPEC))
    blocks = client.blocking.chain(range(TOKENS))
    asyncio.run(client.match(blocks))  # a thread is there, and idle

    def ask() -> None:
        with pytest.raises(Unavailable, match="fork"):
            asyncio.run(client.match(blocks))

    in_a_fork(ask)
