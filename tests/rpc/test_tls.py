"""TLS as servers and channels speak it: whom each believes, and renewal without a restart."""

from __future__ import annotations

import asyncio
import datetime
import os
import resource
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.cli.main import main
from kvstore.config import CREDENTIALS, OPEN, Credentials, TlsConfig
from kvstore.errors import ConfigError
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority, Holder
from kvstore.rpc.channel import open_channel
from kvstore.rpc.identity import Caller, listen_address
from kvstore.rpc.server import Server
from kvstore.rpc.tls import Renewing, ServerTls, check_role, data_server, valid_between

DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "certs", DAY)


def served(tls: TlsConfig, test: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Run a test against a server of no service but health."""

    async def run() -> None:
        server = Server("127.0.0.1:0", {}, tls=tls)
        await server.start()
        try:
            await asyncio.wait_for(test(server.address), 60)
        finally:
            await server.stop(0)

    asyncio.run(run())


async def health(address: str, credentials: Credentials) -> str:
    """SERVING, or the words with which it failed."""

    def ask() -> str:
        with open_channel(address, credentials) as channel:
            try:
                reply = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
            except grpc.RpcError as error:
                return str(error.details())
            return "SERVING" if reply == b"\x08\x01" else repr(reply)

    return await asyncio.to_thread(ask)


def test_a_caller_believes_no_server_of_another_authority_or_another_host(
    tmp_path: Path, authority: Authority
) -> None:
    node = authority.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    elsewhere = authority.sign(Holder(Role.NODE, "b", ("10.0.0.1",)), DAY)
    client = authority.sign(Holder(Role.CLIENT, "x"), DAY)
    other = Authority.make(tmp_path / "other", DAY).sign(Holder(Role.CLIENT, "x"), DAY)

    async def test(address: str) -> None:
        assert await health(address, Credentials(client)) == "SERVING"
        believing = Credentials(TlsConfig(other.ca, client.cert, client.key))
        assert "certificate" in (await health(address, believing)).lower()

    served(node, test)

    async def wrong_host(address: str) -> None:
        assert "Hostname" in await health(address, Credentials(client))

    served(elsewhere, wrong_host)


def test_a_clients_certificate_serves_nobody(authority: Authority) -> None:
    """Or whoever has one could stand in for a node."""
    client = authority.sign(Holder(Role.CLIENT, "x", HOSTS), DAY)

    async def test(address: str) -> None:
        assert await health(address, Credentials(client)) != "SERVING"

    served(client, test)


def test_renewed_certificates_are_used_without_a_restart(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kvstore.rpc.tls")
    old = authority.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    client = authority.sign(Holder(Role.CLIENT, "x"), DAY)
    next_one = Authority.make(tmp_path / "next", DAY)
    renewed = next_one.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    new_client = next_one.sign(Holder(Role.CLIENT, "x"), DAY)

    async def test(address: str) -> None:
        assert await health(address, Credentials(client)) == "SERVING"
        assert await health(address, Credentials(new_client)) != "SERVING"
        # Half done: the certificate is new, its key is not yet. What served before goes on.
        os.replace(renewed.cert, old.cert)
        assert await health(address, Credentials(client)) == "SERVING"
        assert "is not the key of" in caplog.text
        os.replace(renewed.key, old.key)
        shutil.copy(renewed.ca, old.ca)
        assert await health(address, Credentials(new_client)) == "SERVING"
        assert await health(address, Credentials(client)) != "SERVING"
        # Gone altogether: what was read last still counts.
        old.cert.unlink()
        assert await health(address, Credentials(new_client)) == "SERVING"

    served(old, test)


def renew(old: TlsConfig, files: TlsConfig, *names: str) -> None:
    for name in names:
        os.replace(getattr(files, name), getattr(old, name))


@contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    """As where callers have taken all the descriptors that the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_renewal_that_could_not_be_read_is_read_once_it_can(
    tmp_path: Path, authority: Authority
) -> None:
    old = authority.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    renewed = Authority.make(tmp_path / "next", DAY).sign(Holder(Role.NODE, "a", HOSTS), DAY)
    files = Renewing(old, lambda tls: valid_between(tls) and tls.cert.read_bytes())
    before, after = old.cert.read_bytes(), renewed.cert.read_bytes()
    renew(old, renewed, "ca", "cert", "key")
    with no_file_can_be_opened():
        assert files.latest() == before
    assert files.latest() == after


def test_data_connections_go_on_by_what_was_whole_while_a_renewal_is_half_done(
    tmp_path: Path, authority: Authority
) -> None:
    old = authority.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    renewed = Authority.make(tmp_path / "next", DAY).sign(Holder(Role.NODE, "a", HOSTS), DAY)
    files = Renewing(old, data_server)
    before = files.latest()
    renew(old, renewed, "cert")
    assert files.latest() is before
    renew(old, renewed, "key", "ca")
    after = files.latest()
    assert after is not before and files.latest() is after


def test_a_node_does_not_start_with_a_certificate_of_another_role(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    node = authority.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    client = authority.sign(Holder(Role.CLIENT, "x"), DAY)
    check_role(node, Role.NODE)
    options = ["--tls-ca", str(client.ca), "--tls-cert", str(client.cert)]
    where = ["--dir", str(tmp_path / "n"), "--dram", "16MiB", "--slab", "8MiB"]
    assert main(["node", *where, *options, "--tls-key", str(client.key)]) == 2
    assert "is a certificate of a client; a node serves here" in capsys.readouterr().err
    assert main(["node", *where, *options]) == 2
    assert "--tls-key is not given" in capsys.readouterr().err


def test_files_that_do_not_fit_are_named(tmp_path: Path, authority: Authority) -> None:
    one = authority.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    two = authority.sign(Holder(Role.NODE, "b", HOSTS), DAY)
    text = tmp_path / "text"
    text.write_text("no PEM")
    for tls, words in (
        (TlsConfig(one.ca, one.cert, two.key), "is not the key of"),
        (TlsConfig(one.ca, one.cert, tmp_path / "none"), "No such file"),
        (TlsConfig(one.ca, text, one.key), "not PEM"),
        (TlsConfig(one.ca, one.cert, text), "not PEM"),
    ):
        with pytest.raises(ConfigError, match=words):
            ServerTls(tls)
    with pytest.raises(ConfigError, match="--tls-cert"):
        check_role(TlsConfig(one.ca, text, one.key), Role.NODE)


def test_beyond_loopback_a_server_listens_over_tls_only(authority: Authority) -> None:
    tls = authority.sign(Holder(Role.NODE, "a", HOSTS), DAY)
    for address in ("0.0.0.0:0", "10.0.0.1:7410", "example.org:1", "[::]:0"):
        assert listen_address(address, tls) == address
        with pytest.raises(ConfigError, match="--tls-cert"):
            listen_address(address)
    for address in (":1", "10.0.0.1", "10.0.0.1:x"):
        with pytest.raises(ConfigError):
            listen_address(address, tls)


def test_what_a_caller_shows_is_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Credentials.of_environment() == OPEN
    for name in CREDENTIALS[:2]:
        monkeypatch.setenv(name, f"/{name}")
        with pytest.raises(ConfigError, match="MOONPOOL_TLS_KEY is not given"):
            Credentials.of_environment()
    monkeypatch.setenv(CREDENTIALS[2], f"/{CREDENTIALS[2]}")
    paths = (Path(f"/{name}") for name in CREDENTIALS[:3])
    tls = TlsConfig(*paths)
    assert Credentials.of_environment() == Credentials(tls)
    file = tmp_path / "token"
    file.write_text("mpt_1\n")
    monkeypatch.setenv("MOONPOOL_TOKEN_FILE", str(file))
    assert Credentials.of_environment() == Credentials(tls, "mpt_1")
    monkeypatch.setenv("MOONPOOL_TOKEN", "mpt_2")
    with pytest.raises(ConfigError, match="one of them"):
        Credentials.of_environment()
    monkeypatch.delenv("MOONPOOL_TOKEN_FILE")
    assert Credentials.of_environment().token == "mpt_2"
    assert "mpt_2" not in repr(Credentials.of_environment())


def test_a_callers_token_is_not_shown_where_the_caller_is() -> None:
    assert "mpt_1" not in repr(Caller(Role.CLIENT, "x", "team-a", "mpt_1"))


def test_a_token_never_travels_without_tls() -> None:
    with pytest.raises(ConfigError, match="over TLS only"):
        Credentials(None, "mpt_1")
    with pytest.raises(ConfigError, match="printable"):
        Credentials(TlsConfig(Path("a"), Path("b"), Path("c")), "x\n")
