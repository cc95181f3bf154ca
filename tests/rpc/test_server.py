"""A server's manners: typed failures, words kept back, turns, and addresses it may listen on."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from kvstore.errors import ConfigError, Overloaded, PinExpired
from kvstore.limits import RPC_BULK_MAX, RPC_OPEN_STREAMS_MAX, RPC_UNARY_MAX, MiB
from kvstore.rpc import access
from kvstore.rpc import server as module
from kvstore.rpc.access import TENANTS
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import announced_host, listen_address, loopback_address
from kvstore.rpc.server import Server

SECONDS = 20.0
TOYS = {f"/toy.Toy/{method}": TENANTS for method in ("Wait", "Fail", "Tell", "Take")}
ACCESS = {**access.ACCESS, **TOYS}
UNARY, BULK = RPC_UNARY_MAX * 3 // 4, RPC_BULK_MAX * 3 // 4  # places of a tenant that is alone
STREAMS = RPC_OPEN_STREAMS_MAX * 3 // 4  # likewise, where it has as many of the others


class Toy:
    """A service with one method of each kind that a test needs."""

    def __init__(self) -> None:
        self.running, self.most = 0, 0
        self.go = asyncio.Event()
        self.closed = self.taking = 0

    @typed
    async def Wait(self, request: bytes, context: Any) -> bytes:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return request

    @typed
    async def Fail(self, request: bytes, context: Any) -> bytes:
        if request == b"bug":
            raise ValueError("a secret")
        raise PinExpired(request.decode())

    @typed
    async def Tell(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            for i in range(1_000_000):
                if i == 3 and request == b"fail":
                    raise Overloaded("enough", 70)
                yield bytes(100_000)
        finally:
            self.closed += 1

    @typed
    async def Take(self, stream: AsyncIterator[bytes], context: Any) -> bytes:
        self.taking += 1
        try:
            return b"".join([part async for part in stream])
        finally:
            self.taking -= 1

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Wait": grpc.unary_unary_rpc_method_handler(self.Wait),
            "Fail": grpc.unary_unary_rpc_method_handler(self.Fail),
            "Tell": grpc.unary_stream_rpc_method_handler(self.Tell),
            "Take": grpc.stream_unary_rpc_method_handler(self.Take),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("toy.Toy", handlers)])


def served(test: Callable[[Toy, grpc.aio.Channel], Awaitable[None]], **more: int) -> None:
    """Run a test against a server of its own."""

    async def run() -> None:
        toy = Toy()
        toys = {"toy.Toy": toy.register}
        server = Server("127.0.0.1:0", toys, bulk=["/toy.Toy/Take"], access=ACCESS, **more)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                await asyncio.wait_for(test(toy, channel), SECONDS)
        finally:
            await server.stop(0)

    asyncio.run(run())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def trailers(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return dict(error.trailing_metadata() or ())


def test_a_typed_error_leaves_with_its_class_and_a_bug_without_its_words() -> None:
    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        fail = channel.unary_unary("/toy.Toy/Fail")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fail(b"handles[0] expired")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert caught.value.details() == "handles[0] expired"
        assert trailers(caught.value)["moonpool-error"] == "PinExpired"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fail(b"bug")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value.details()) + str(trailers(caught.value))

    served(test)


def test_a_stream_that_fails_has_sent_what_came_before() -> None:
    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        received = 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for part in channel.unary_stream("/toy.Toy/Tell")(b"fail"):
                received += len(part)
        assert received == 300_000 and caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailers(caught.value)["moonpool-retry-after-ms"] == "70"
        assert toy.closed == 1

    served(test)


def test_a_stream_whose_caller_hangs_up_is_closed_at_once() -> None:
    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        gc.disable()
        try:
            call = channel.unary_stream("/toy.Toy/Tell")(b"")
            await call.read()
            await asyncio.sleep(0.1)  # until the server waits for room to send
            call.cancel()
            await until(lambda: toy.closed == 1)
        finally:
            gc.enable()

    served(test)


def test_a_refused_call_is_forgotten_without_the_garbage_collector() -> None:
    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        fail = channel.unary_unary("/toy.Toy/Fail")
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError):
                    await fail(b"x" * 1_000_003)
            found = [one for one in gc.get_objects() if type(one) is grpc.aio.AbortError]
            assert not found, "each of them would hold its request"
        finally:
            gc.enable()

    served(test)


def test_unary_calls_take_turns_and_all_are_served() -> None:
    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        wait = channel.unary_unary("/toy.Toy/Wait")
        calls = [wait(b"%d" % i) for i in range(3 * UNARY)]
        given_up = [wait(b"late", timeout=0.2) for _ in range(4)]
        await until(lambda: toy.running == UNARY)
        for call in given_up:
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        toy.go.set()
        assert [await call for call in calls] == [b"%d" % i for i in range(len(calls))]
        assert toy.most == UNARY

    served(test)


def test_callers_that_never_send_their_message_lose_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstore.rpc.admission.RPC_UNARY_SECONDS", 2.0)

    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        # To the server these are calls of Fail, a unary method; it waits for their message.
        stalled = [channel.stream_unary("/toy.Toy/Fail")() for _ in range(2 * UNARY)]
        await asyncio.sleep(0.2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/toy.Toy/Fail")(b"handles[0] expired")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION, "it was answered"
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await stalled[0]
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED, "which is no answer"
        assert trailers(late.value)["moonpool-error"] == "Unavailable"
        for call in stalled:
            call.cancel()

    served(test)


def test_streams_of_bulk_beyond_the_limit_are_refused_and_their_places_come_back() -> None:
    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        take = channel.stream_unary("/toy.Toy/Take")
        for _ in range(2):
            calls = [take() for _ in range(BULK)]
            for call in calls:
                await call.write(b"1")
            await until(lambda: toy.taking == BULK)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await take(iter([b"1"]))
            assert trailers(caught.value)["moonpool-error"] == "Overloaded"
            assert str(BULK) in str(caught.value.details())
            for i, call in enumerate(calls):  # some end well, some are given up
                if i % 2:
                    await call.done_writing()
                    assert await call == b"1"
                else:
                    call.cancel()
            await until(lambda: toy.taking == 0)
            await asyncio.sleep(0.2)  # a place is free a few turns of the loop later
        assert await take(iter([b"1", b"2"])) == b"12"

    served(test)


# As a message that is too large, or, by older releases of gRPC, for being compressed at all.
REFUSED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_message_that_is_small_while_it_is_compressed_is_refused_and_not_unpacked(
    algorithm: grpc.Compression,
) -> None:
    """A few KiB of it may be many GiB."""
    large, packed = bytes(128 * MiB), {"compression": algorithm}

    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        toy.go.set()
        for call in (
            lambda: channel.unary_unary("/toy.Toy/Wait")(large, **packed),
            lambda: channel.stream_unary("/toy.Toy/Take")(iter([large]), **packed),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call()
            assert caught.value.code() in REFUSED
        assert (toy.most, toy.taking) == (0, 0), "nobody has seen it"
        assert await channel.unary_unary("/toy.Toy/Wait")(b"plain") == b"plain"

    served(test)


@pytest.mark.parametrize("version", ["1.72.2", "1.80.0rc1", "1.81.0", "1.85.1.dev3", "2.0.0"])
def test_where_grpc_would_unpack_it_first_nothing_compressed_is_taken(version: str) -> None:
    names = [name for name, _ in module._plain_alone(version)]
    wanted = ["grpc.compression_enabled_algorithms_bitset"]
    assert names == (wanted if version < "1.81" else [])


@pytest.mark.parametrize(
    "method",
    [
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_streams_that_take_no_token_take_none_of_the_others_places(method: str) -> None:
    async def test(toy: Toy, channel: grpc.aio.Channel) -> None:
        open_ = [channel.stream_stream(f"/{method}")() for _ in range(RPC_OPEN_STREAMS_MAX)]
        for call in open_:
            await call.write(b"")
        await until(lambda: sum(call.done() for call in open_) == RPC_OPEN_STREAMS_MAX // 4)
        told = [channel.unary_stream("/toy.Toy/Tell")(b"") for _ in range(STREAMS)]
        for call in told:
            assert await call.read() == bytes(100_000)
        for call in (*open_, *told):
            call.cancel()

    served(test, streams=RPC_OPEN_STREAMS_MAX)


def test_only_this_hosts_addresses_are_listened_on() -> None:
    for address in ("127.0.0.1:0", "127.0.0.9:7410", "[::1]:0", "localhost:65535"):
        assert listen_address(address) == address
    for address in ("0.0.0.0:0", "[::]:1", "10.0.0.1:1", "example.org:1", ":1", "127.0.0.1:65536"):
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
            listen_address(address)


def test_why_nothing_can_listen_there_is_said_and_grpc_adds_no_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(address: str) -> str:
        with pytest.raises(ConfigError, match=f"^cannot listen on {re.escape(address)}: ") as said:
            Server(address, {})
        return str(said.value)

    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "another process does" in asyncio.run(refused(address))
    for address in ("192.0.2.1:0", "192.0.2.1:7410"):
        assert "no such address" in asyncio.run(refused(address))
    assert "nohost.invalid is no name" in asyncio.run(refused("nohost.invalid:7410"))
    monkeypatch.setattr(socket, "create_server", forbidden)
    assert "permission denied: ports below 1024" in asyncio.run(refused("127.0.0.1:80"))
    assert "permission denied" in (said := asyncio.run(refused("127.0.0.1:7410")))
    assert "1024" not in said
    assert capfd.readouterr().err == ""


def test_who_has_no_tls_is_not_told_to_take_certificates() -> None:
    for address in ("127.0.0.1:0", "[::1]:0", "localhost:65535"):
        assert loopback_address(address) == address
    for address in ("0.0.0.0:0", "10.0.0.1:1", "example.org:1", ":1", "127.0.0.1:x"):
        with pytest.raises(ConfigError, match=r"^--listen = .*127\.0\.0\.1") as caught:
            loopback_address(address)
        assert "--tls" not in str(caught.value)


def test_what_others_are_told_is_a_host_alone() -> None:
    for host in ("10.0.0.1", "a.example.org", "[2001:db8::1]", "localhost"):
        assert announced_host("0.0.0.0:7410", host) == host
    for wrong in ("10.0.0.1:7410", "2001:db8::1", "a b", "http://a", "a:", "[::1]:1", "[::1"):
        with pytest.raises(ConfigError, match=r"--advertise = .*10\.0\.0\.1"):
            announced_host("0.0.0.0:7410", wrong)


def test_a_caller_that_hung_up_before_its_answer_is_no_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = logging.getLogger("grpc._cython.cygrpc")
    theirs.error("ExecuteBatchError raised in core by servicer method [%s]", "/a/Close")
    theirs.error("Exception in servicer method [%s]", "/a/Close")
    assert [record.getMessage() for record in caplog.records] == [
        "Exception in servicer method [/a/Close]"
    ]
