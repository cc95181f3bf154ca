from __future__ import annotations

import asyncio
import datetime
import shutil
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvstore.config import TlsConfig
from kvstore.errors import ConfigError
from kvstore.limits import METRICS_CALLS_MAX, METRICS_HEAD_BYTES_MAX
from kvstore.rpc import metrics_port
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority, Holder
from kvstore.rpc.metrics_port import MetricsPort
from kvstore.telemetry import ENGINE, Telemetry
from tests.ipv6 import both

GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
ANSWER_SECONDS = 30.0


def served(
    ask: Callable[[str, int], Awaitable[None]],
    telemetry: Telemetry | None = None,
    tls: TlsConfig | None = None,
    at: str = "127.0.0.1:0",
) -> None:
    async def run() -> None:
        port = MetricsPort(telemetry or Telemetry(ENGINE), tls)
        await port.listen(at)
        host, _, number = port.address.rpartition(":")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await ask(host, int(number))
        finally:
            await port.close()

    asyncio.run(run())


async def said(host: str, port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    return answer


def values(answer: bytes) -> dict[tuple[str, str], float]:
    """By name and the one label's value."""
    text = answer.partition(b"\r\n\r\n")[2].decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_what_was_counted_looked_up_and_timed() -> None:
    telemetry = Telemetry(ENGINE)
    telemetry.add("prompt_tokens", 70, "pool")
    telemetry.add("prompt_tokens", 30, "computed")
    telemetry.add("output_tokens", 5)
    telemetry.look_up("running_requests", lambda: 2.0)
    telemetry.look_up("pages", lambda: {"free": 9.0, "taken": 1.0})
    telemetry.observe("step_seconds", 0.25)
    telemetry.observe("load_seconds", 0.01, "pool")

    async def ask(host: str, port: int) -> None:
        answer = await said(host, port, GET)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        found = values(answer)
        assert found["moonpool_prompt_tokens_total", "pool"] == 70
        assert found["moonpool_prompt_tokens_total", "computed"] == 30
        assert found["moonpool_output_tokens_total", ""] == 5
        assert found["moonpool_failed_requests_total", ""] == 0
        assert found["moonpool_running_requests", ""] == 2
        assert found["moonpool_pages", "taken"] == 1
        assert found["moonpool_step_seconds_bucket", "0.2"] == 0
        assert found["moonpool_step_seconds_bucket", "0.3"] == 1
        assert found["moonpool_step_seconds_bucket", "+Inf"] == 1
        assert found["moonpool_step_seconds_sum", ""] == 0.25
        assert found["moonpool_load_seconds_count", "pool"] == 1
        assert found["moonpool_prefill_seconds_count", ""] == 0, "nothing yet"
        assert found["moonpool_process_info", "engine"] == 1
        assert found["moonpool_resident_bytes", ""] > 1e6
        assert found["moonpool_uptime_seconds", ""] >= 0

    served(ask, telemetry)


def test_how_long_the_certificate_on_disk_holds_is_told_where_there_is_one(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    authority = Authority.make(tmp_path, datetime.timedelta(days=9))
    files = authority.sign(Holder(Role.CLIENT, "a"), datetime.timedelta(hours=2))
    renewed = authority.sign(Holder(Role.CLIENT, "b"), datetime.timedelta(days=3))
    name = ("moonpool_certificate_left_seconds", "")

    async def ask(host: str, port: int) -> None:
        assert 7_000 < values(await said(host, port, GET))[name] <= 7_200
        shutil.copyfile(renewed.cert, files.cert)
        assert name not in values(await said(host, port, GET)), "its key is not there yet"
        shutil.copyfile(renewed.key, files.key)
        assert values(await said(host, port, GET))[name] > 2 * 86_400

    async def none(host: str, port: int) -> None:
        assert name not in values(await said(host, port, GET))

    served(ask, tls=files)
    served(none)


def test_who_asks_for_openmetrics_gets_them() -> None:
    async def ask(host: str, port: int) -> None:
        accept = b"Accept: application/openmetrics-text; version=1.0.0\r\n"
        answer = await said(host, port, GET[:-2] + accept + b"\r\n")
        assert b"Content-Type: application/openmetrics-text" in answer
        assert answer.endswith(b"# EOF\n")

    served(ask)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", b"200"),
        (b"nonsense\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"a" * METRICS_HEAD_BYTES_MAX * 2, b"431"),
    ],
)
def test_anything_else_is_refused(sent: bytes, status: bytes) -> None:
    async def ask(host: str, port: int) -> None:
        assert (await said(host, port, sent)).split(b" ")[1] == status

    served(ask)


def test_who_stalls_is_hung_up_on_and_who_comes_beyond_the_bound_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_port, "METRICS_SECONDS_MAX", 0.5)

    async def ask(host: str, port: int) -> None:
        stalled = [await asyncio.open_connection(host, port) for _ in range(METRICS_CALLS_MAX)]
        for _, writer in stalled:
            writer.write(b"GET")
        await asyncio.sleep(0.1)
        assert await said(host, port, b"") == b"", "at once"
        for reader, writer in stalled:
            assert await reader.read() == b""
            writer.close()
        monkeypatch.undo()
        assert b" 200 " in await said(host, port, GET)

    served(ask)


@pytest.mark.parametrize("address", ["9401", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused_by_name(address: str) -> None:
    async def listen() -> None:
        await MetricsPort(Telemetry(ENGINE)).listen(address)

    with pytest.raises(ConfigError, match="--metrics"):
        asyncio.run(listen())


def test_a_host_that_can_have_no_such_name_is_refused_by_name() -> None:
    async def listen() -> None:
        await MetricsPort(Telemetry(ENGINE)).listen("10.0.0..1:9401")

    with pytest.raises(ConfigError, match=r"--metrics = '10\.0\.0\.\.1:9401': no host can have"):
        asyncio.run(listen())


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    async def ask(host: str, port: int) -> None:
        with pytest.raises(ConfigError, match=f"--metrics = '{host}:{port}'"):
            await MetricsPort(Telemetry(ENGINE)).listen(f"{host}:{port}")

    served(ask)


def test_who_reads_no_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what is not sent of it would stay here, with its socket, for as long as it likes."""
    monkeypatch.setattr(metrics_port, "METRICS_SECONDS_MAX", 0.5)
    more = 16 << 20  # than the kernel takes of an answer that nobody reads
    monkeypatch.setattr(metrics_port, "choose_encoder", lambda _: (lambda _: bytes(more), "text"))

    async def ask(host: str, port: int) -> None:
        peer = socket.create_connection((host, port))
        with peer:
            peer.sendall(GET)
            await asyncio.sleep(1.0)
            assert await asyncio.to_thread(taken_from, peer) < more

    def taken_from(peer: socket.socket) -> int:
        peer.settimeout(ANSWER_SECONDS)
        taken = 0
        with suppress(ConnectionResetError):
            while got := len(peer.recv(1 << 20)):
                taken += got
        return taken

    served(ask)


@pytest.mark.parametrize("version", ["abc", "1.x"])
def test_a_version_that_is_none_is_answered_as_prometheus_has_always_read_it(version: str) -> None:
    """The library that chooses raises for it: no caller is to be hung up on, nor the log filled."""

    async def ask(host: str, port: int) -> None:
        accepted = f"Accept: application/openmetrics-text; version={version}\r\n\r\n"
        answer = await said(host, port, GET.removesuffix(b"\r\n") + accepted.encode())
        assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
        assert values(answer)

    served(ask)


@both
def test_on_all_addresses_it_is_read_by_ipv4_too() -> None:
    async def ask(_: str, port: int) -> None:
        for host in ("::1", "127.0.0.1"):
            assert (await said(host, port, GET)).startswith(b"HTTP/1.1 200 ")

    served(ask, at="[::]:0")
