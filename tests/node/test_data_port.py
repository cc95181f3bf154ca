"""The data port of a real node: who is let in, what moves, and what becomes of the others."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import (
    DATA_CALL_BLOCKS_MAX,
    DATA_GREETINGS_MAX,
    DATA_SESSION_CONNECTIONS_MAX,
    HANDLE_BYTES_MAX,
    PROBE_BYTES_MAX,
    MiB,
)
from kvstore.node.data_port import DataPort
from kvstore.node.sessions import Sessions
from kvstore.telemetry import NODE, Telemetry
from kvstore.transfer.frames import (
    HELLO,
    HELLO_MAGIC,
    WELCOME,
    Found,
    Op,
    Status,
    Welcome,
)
from tests.nodes import (
    LAYOUT,
    Caller,
    NodeProcess,
    caller,
    eventually,
    node,
    payload,
    prompt,
    shared,
    shared_node,
)
from tests.transfer.raw import WHOLE, Raw

__all__ = ["caller", "node", "shared", "shared_node"]

numbers = iter(range(10_000_000, 20_000_000))


@pytest.fixture
def raw(shared: Caller) -> Iterator[Raw]:
    with Raw.of(shared) as made:
        yield made


def opened(caller: Caller, blocks: int = 1, **options: int) -> list[bytes]:
    """Handles of pins on new sealed blocks."""
    chain = prompt(next(numbers), blocks)
    caller.put(chain)
    return list(caller.ask("Open", **caller.about(chain), **options).handles)


def reserved(caller: Caller) -> list[bytes]:
    return list(caller.reserve(prompt(next(numbers))).handles)


def body(data: bytes, layout: SlotLayout = LAYOUT) -> bytes:
    """A whole block as WRITE sends it: entries, then strips."""
    size = len(data) // layout.strips
    strips = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(xxhash.xxh3_64_intdigest(one).to_bytes(8, "little") for one in strips) + data


def settled(caller: Caller) -> bool:
    stats = caller.stats()
    return (stats.windows, stats.pins) == (0, 0)


# What moves


def test_a_read_gives_identity_table_and_strips(shared: Caller, raw: Raw) -> None:
    chain = prompt(next(numbers), 2)
    shared.put(chain)
    reply = shared.ask("Open", **shared.about(chain))
    assert raw.statuses(Op.READ, list(reply.handles)) == [Status.MOVED] * 2
    for index, block in enumerate(chain.hashes):
        run = raw.receive(LAYOUT.root_bytes)
        assert xxhash.xxh3_128_digest(run) == reply.roots[index]
        assert raw.receive(LAYOUT.payload_bytes) == payload(block)


def test_a_write_is_sealed_with_the_bytes_that_came(shared: Caller, raw: Raw) -> None:
    chain = prompt(next(numbers))
    handles = list(shared.reserve(chain).handles)
    assert raw.statuses(Op.WRITE, handles) == [Status.MOVED]
    raw.socket.sendall(body(payload(chain.hashes[0])))
    assert list(raw.receive(1)) == [Status.MOVED]
    shared.ask("Seal", handles=handles)
    assert shared.get(chain)[1] == [payload(chain.hashes[0])]


def test_bytes_that_differ_from_their_hash_count_for_nothing(shared: Caller, raw: Raw) -> None:
    chain = prompt(next(numbers))
    handles = list(shared.reserve(chain).handles)
    for at in (0, 31, 32, 543):  # entries, then strips
        raw.call(Op.WRITE, handles)
        assert list(raw.receive(1)) == [Status.MOVED]
        damaged = bytearray(body(payload(chain.hashes[0])))
        damaged[at] ^= 8
        raw.socket.sendall(damaged)
        assert list(raw.receive(1)) == [Status.DAMAGED]
        with pytest.raises(Exception, match="not written"):
            shared.ask("Seal", handles=handles)
    raw.call(Op.WRITE, handles)
    raw.receive(1)
    raw.socket.sendall(body(payload(chain.hashes[0])))
    assert list(raw.receive(1)) == [Status.MOVED], "at once: nothing is under way any more"
    shared.ask("Seal", handles=handles)
    assert shared.get(chain)[1] == [payload(chain.hashes[0])]


@pytest.mark.parametrize("part", [WHOLE, Fragment(1, 1, 0, 1)])
def test_forged_foreign_and_replayed_handles_move_no_byte(
    shared: Caller, shared_node: NodeProcess, raw: Raw, part: Fragment
) -> None:
    pin, closed, open_ = opened(shared)[0], opened(shared)[0], reserved(shared)[0]
    shared.ask("Close", handles=[closed])
    thief = shared_node.caller()
    with Raw.of(thief) as other:
        for op in (Op.READ, Op.WRITE):
            assert other.statuses(op, [pin, open_], part) == [Status.REFUSED] * 2
        assert other.look([pin], part) == [(Found.GONE, 0)]
        assert other.statuses(Op.READ, [bytes(len(pin))], part) == [Status.REFUSED]
    assert raw.statuses(Op.READ, [closed], part) == [Status.LAPSED]
    assert raw.statuses(Op.READ, [open_], part) == [Status.REFUSED]
    assert raw.statuses(Op.WRITE, [pin], part) == [Status.REFUSED]
    assert raw.look([pin], part) == [(Found.SEALED, part.layers)], "and it goes on"
    shared.ask("Close", handles=[pin])
    shared.ask("Abort", handles=[open_])


def test_an_expired_handle_moves_no_byte(shared: Caller, raw: Raw) -> None:
    (handle,) = opened(shared, pin_ms=1)
    eventually(lambda: raw.look([handle])[0][0] == Found.GONE)
    assert raw.statuses(Op.READ, [handle]) == [Status.LAPSED]


def test_a_thousand_mutations_of_a_real_call_move_no_byte_and_leave_the_node_well(
    shared: Caller,
) -> None:
    """Handles and frames: what still is a call is refused, what is none is hung up on."""
    dice = random.Random(2_025)
    pin, open_ = opened(shared, pin_ms=600_000)[0], reserved(shared)[0]
    connection = Raw.of(shared)
    for _ in range(1_000):
        real, op = dice.choice([(pin, Op.READ), (open_, Op.WRITE)])
        forged = bytearray(real)
        forged[dice.randrange(len(forged))] ^= 1 << dice.randrange(8)
        part = [dice.choice([0, 1, 2, 3, 2**32 - 1]) for _ in range(4)]
        assert connection.statuses(op, [bytes(forged)], Fragment(*part)) == [Status.REFUSED]
    connection.close()
    for _ in range(100):
        with Raw.of(shared) as broken:
            frame = bytearray(dice.randbytes(36))
            frame[0] = dice.choice([0, 1, 2, 3, 5, 6, 7, 8, 255])
            broken.blurt(frame + dice.randbytes(dice.randrange(300)))
    shared.ask("Seal", handles=_filled(shared, open_))
    shared.ask("Close", handles=[pin])
    eventually(lambda: settled(shared))


def _filled(caller: Caller, handle: bytes) -> list[bytes]:
    """The window, written for the first time now: no byte had come before."""
    caller.write(handle, bytes(LAYOUT.payload_bytes))
    return [handle]


# Who is let in


def test_only_a_live_session_with_its_own_token_is_let_in(
    shared: Caller, shared_node: NodeProcess
) -> None:
    ended = shared_node.caller()
    ended.close()
    eventually(lambda: is_over(ended))
    good = (shared.session, shared.opened.data_token)
    before = shared.counters()["data_refusals"]
    greetings = [
        (shared.session, shared.opened.shm_token, HELLO_MAGIC),
        (shared.opened.data_token, shared.session, HELLO_MAGIC),
        (ended.session, ended.opened.data_token, HELLO_MAGIC),
        (bytes(16), bytes(16), HELLO_MAGIC),
        (*good, b"HTTP/1.1"),
    ]
    for session, token, magic in greetings:
        with Raw(shared.opened.data_address) as one:
            assert one.greet(session, token, magic) == Welcome.UNKNOWN
            assert one.ended()
    assert shared.counters()["data_refusals"] == before + len(greetings)
    with Raw(shared.opened.data_address) as one:
        assert one.greet(*good) == Welcome.COME_IN


def test_whoever_says_nothing_or_trickles_its_greeting_is_hung_up_on(shared: Caller) -> None:
    silent, slow = Raw(shared.opened.data_address), Raw(shared.opened.data_address)
    hello = HELLO.pack(HELLO_MAGIC, shared.session, shared.opened.data_token)
    slow.socket.settimeout(0.3)
    ended = False
    for byte in hello:
        try:
            slow.socket.sendall(bytes([byte]))
            ended = slow.socket.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            ended = True
        if ended:
            break
    assert ended, "a byte at a time takes longer than a greeting may"
    assert silent.ended()
    silent.close()
    slow.close()


def test_those_who_have_not_greeted_are_bounded_and_shut_nobody_out_for_long(
    shared: Caller,
) -> None:
    crowd = [Raw(shared.opened.data_address) for _ in range(DATA_GREETINGS_MAX + 8)]
    assert all(one.ended() for one in crowd[-8:]), "beyond the bound: at once, or soon"

    def let_in() -> bool:
        with Raw(shared.opened.data_address) as one:
            try:
                return one.greet(shared.session, shared.opened.data_token) == 0
            except (AssertionError, OSError):
                return False

    eventually(let_in, 20.0)
    for one in crowd:
        one.close()


def test_no_session_takes_all_the_connections(shared: Caller, shared_node: NodeProcess) -> None:
    mine = [Raw.of(shared) for _ in range(DATA_SESSION_CONNECTIONS_MAX)]
    with Raw(shared.opened.data_address) as more:
        assert more.greet(shared.session, shared.opened.data_token) == Welcome.FULL
        assert more.ended()
    other = shared_node.caller()
    with Raw.of(other) as served:
        (handle,) = opened(other)
        assert served.look([handle])[0][0] == Found.SEALED
    mine.pop().close()

    def again() -> bool:
        with Raw(shared.opened.data_address) as one:
            return one.greet(shared.session, shared.opened.data_token) == 0

    eventually(again)
    for one in mine:
        one.close()


def is_over(caller: Caller) -> bool:
    """Whether the node knows the session no more."""
    with Raw(caller.opened.data_address) as one:
        return one.greet(caller.session, caller.opened.data_token) == Welcome.UNKNOWN


def test_a_node_that_can_have_no_thread_hangs_up_and_lets_the_next_ones_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    telemetry = Telemetry(NODE)
    lacking: Any = None
    port = DataPort("127.0.0.1", 0, *[lacking] * 3, Sessions(), telemetry)
    where = ("127.0.0.1", port.port)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def serve() -> None:
        serving = asyncio.create_task(port.serve(lacking))
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            for _ in range(DATA_GREETINGS_MAX + 1):
                reader, writer = await asyncio.open_connection(*where)
                assert await reader.read() == b""
                writer.close()
        reader, writer = await asyncio.open_connection(*where)
        writer.write(HELLO.pack(HELLO_MAGIC, bytes(16), bytes(16)))
        said = await reader.readexactly(WELCOME.size)
        assert WELCOME.unpack(said)[1] == Welcome.UNKNOWN
        writer.close()
        while telemetry.totals()["data_refusals"] < DATA_GREETINGS_MAX + 2:
            await asyncio.sleep(0.01)  # the last is counted after it was told
        serving.cancel()

    asyncio.run(asyncio.wait_for(serve(), 20.0))
    port.close()
    assert telemetry.totals()["data_refusals"] == DATA_GREETINGS_MAX + 2


# Malformed frames


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"count": DATA_CALL_BLOCKS_MAX + 1},
        {"count": 2**32 - 1},
        {"handle_bytes": 0},
        {"handle_bytes": HANDLE_BYTES_MAX + 1},
        {"handle_bytes": 65_535},
    ],
)
def test_counts_and_sizes_beyond_the_bounds_are_hung_up_on(
    shared: Caller, raw: Raw, wrong: dict[str, int]
) -> None:
    raw.call(Op.READ, [bytes(73)], **wrong)  # type: ignore[arg-type]
    assert raw.ended()


@pytest.mark.parametrize("op", [0, Op.PULL, Op.PUSH, 8, 255])
def test_a_call_that_does_not_exist_or_is_not_offered_is_hung_up_on(raw: Raw, op: int) -> None:
    raw.call(op, [bytes(73)])
    assert raw.ended()


def test_a_probe_beyond_the_bound_is_hung_up_on_and_one_within_is_answered(
    shared: Caller, raw: Raw
) -> None:
    with Raw.of(shared) as greedy:
        greedy.call(Op.PROBE, [], size=PROBE_BYTES_MAX + 1)
        assert greedy.ended()
    raw.call(Op.PROBE, [], size=3 * MiB + 1)
    assert raw.receive(3 * MiB + 1) == bytes(3 * MiB + 1)
    raw.socket.sendall(bytes(3 * MiB + 1))
    assert raw.receive(1) == b"\0"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(junk=st.binary(max_size=400), greeted=st.booleans())
def test_random_bytes_are_hung_up_on_and_harm_nobody(
    shared: Caller, junk: bytes, greeted: bool
) -> None:
    with Raw.of(shared) if greeted else Raw(shared.opened.data_address) as one:
        one.blurt(junk)
    (handle,) = opened(shared)
    with Raw.of(shared) as well:
        assert well.statuses(Op.READ, [handle]) == [Status.MOVED]
    shared.ask("Close", handles=[handle])
