"""`moonpool doctor`: what it finds of nodes that serve, and why the others cannot be reached."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.main import main
from kvstore.config import CREDENTIALS, Credentials
from kvstore.metadata import open_metadata
from kvstore.metadata.records import NodeRecord
from tests.auth.people import People
from tests.nodes import NodeProcess, eventually, node, running, short_directory

__all__ = ["node"]


class Doctor:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.said: dict[str, Any] = {}

    def asked(self, *arguments: object) -> int:
        """Its exit code; what it said of all stands in `said`."""
        code = main(["doctor", "--json", *map(str, arguments)])
        self.said = json.loads(self._capsys.readouterr().out)
        return code

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        return {one["address"]: one for one in self.said["nodes"]}

    @property
    def only(self) -> dict[str, Any]:
        (one,) = self.said["nodes"]
        return dict(one)


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


def test_a_node_that_serves_is_well(
    node: NodeProcess, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    for where in (["--dir", node.directory], ["--node", node.address]):
        assert doctor.asked(*where) == 0 and not doctor.said["warnings"]
        one = doctor.only
        assert one["reachable"] and not one["tls"] and one["errors"] == []
        assert one["transports"].keys() == {"tcp", "shm"}
        assert one["transports"]["tcp"]["back_bytes_per_second"] > 0
    assert main(["doctor", "--node", node.address]) == 0
    printed = capsys.readouterr()
    assert "tcp   there" in printed.out and "1 nodes looked at, 0 with errors" in printed.out


def test_a_node_of_another_pool_than_the_one_that_is_named_is_not_well(
    node: NodeProcess, doctor: Doctor, tmp_path: Path
) -> None:
    """As where a name is mistyped: that pool is empty, and no node of it is amiss."""

    async def made() -> None:
        store = open_metadata(os.fspath(tmp_path / "empty.db"))
        await store.list(NodeRecord.prefix)
        await store.close()

    asyncio.run(made())
    assert doctor.asked("--dir", node.directory, "--metadata", tmp_path / "empty.db") == 1
    assert "is not in the pool that was named" in doctor.said["errors"][0]


def test_of_each_gpu_it_says_whether_blocks_over_ucx_go_straight(
    node: NodeProcess,
    doctor: Doctor,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"cuda:0": "", "cuda:1": "its driver says no"}
    monkeypatch.setattr("kvstore.cli.doctor.gpus", lambda: found)
    assert doctor.asked("--node", node.address) == 0, "either way blocks come and go"
    assert doctor.said["host"]["gpus"] == found
    assert main(["doctor", "--node", node.address]) == 0
    printed = capsys.readouterr().out
    assert "this host: cuda:0: blocks over ucx go straight" in printed
    assert "cuda:1: blocks over ucx go through pinned host memory: its driver says no" in printed


def test_a_node_that_is_gone_is_an_error_that_says_so(node: NodeProcess, doctor: Doctor) -> None:
    node.kill()
    assert doctor.asked("--node", node.address) == 1
    one = doctor.only
    assert not one["reachable"]
    assert one["errors"][0].startswith(f"nothing listens at {node.address}: start the node")


def test_a_host_that_can_have_no_such_name_is_an_error_that_names_it(doctor: Doctor) -> None:
    assert doctor.asked("--node", "10.0.0..1:9401") == 1
    assert doctor.only["errors"][0].startswith("no address is known here of 10.0.0..1: ")


def test_a_node_that_stands_still_is_an_error_that_says_so(
    node: NodeProcess, doctor: Doctor
) -> None:
    node.signal(signal.SIGSTOP)
    assert doctor.asked("--node", node.address) == 1
    assert "does not answer as it should" in doctor.only["errors"][0]


def test_a_host_with_no_node_says_so(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--dir", str(tmp_path)]) == 1
    assert "no node has run" in capsys.readouterr().err


def test_where_no_node_runs_either_what_is_wrong_with_the_pools_metadata_is_told(
    tmp_path: Path, doctor: Doctor
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert doctor.asked("--dir", tmp_path, "--etcd", url) == 1
    assert f"--etcd = {url}" in doctor.said["errors"][0]
    assert "no node has run" in doctor.said["warnings"][0]


def test_metadata_that_is_not_where_it_was_said_to_be_is_an_error(
    node: NodeProcess, tmp_path: Path, doctor: Doctor
) -> None:
    nowhere = tmp_path / "pool.db"
    for where in (["--dir", node.directory], ["--node", node.address]):
        assert doctor.asked(*where, "--metadata", nowhere) == 1
        assert f"kept its metadata in {nowhere}" in doctor.said["errors"][0]
        assert not doctor.only["errors"]


def test_a_data_port_that_cannot_be_reached_is_an_error_though_calls_are_answered(
    doctor: Doctor,
) -> None:
    with running(options=["--advertise", "127.0.0.3"]) as elsewhere:
        at = elsewhere.address.replace("127.0.0.3", "127.0.0.1")
        assert doctor.asked("--node", at) == 1
        (error,) = doctor.only["errors"]
        assert doctor.only["reachable"] and "tcp does not work: 127.0.0.3:" in error
        assert "--data-port" in error


# TLS


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[NodeProcess, People]]:
    with short_directory() as place:
        (place / "node").mkdir()
        people = People(place / "certs", place / "node" / "metadata.db")
        started = NodeProcess(place / "node", tls=people.node)
        try:
            yield started.start(), people
        finally:
            started.close()


def show(monkeypatch: pytest.MonkeyPatch, credentials: Credentials) -> None:
    assert credentials.tls is not None
    shown = (credentials.tls.ca, credentials.tls.cert, credentials.tls.key, credentials.token, "")
    for name, value in zip(CREDENTIALS, map(str, shown), strict=True):
        monkeypatch.setenv(name, value)


def test_with_certificates_and_an_operators_token_a_node_is_well(
    guarded: tuple[NodeProcess, People], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_node, people = guarded
    show(monkeypatch, people.of("team-a", admin=True))

    def well() -> bool:  # once the node has heard of the token
        return doctor.asked("--dir", tls_node.directory) == 0

    assert eventually(well, 20)
    assert doctor.only["tls"] and doctor.only["transports"].keys() == {"tcp", "shm"}


def test_with_a_nodes_own_certificate_a_node_is_well_and_not_measured(
    guarded: tuple[NodeProcess, People], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root runs it with the settings of the node's unit: no token is among them."""
    tls_node, people = guarded
    show(monkeypatch, Credentials(people.node))
    assert doctor.asked("--node", tls_node.address) == 0
    assert doctor.only["reachable"] and doctor.only["transports"] == {}
    (warning,) = doctor.only["warnings"]
    assert "client's certificate and token" in warning


def test_whoever_lacks_something_is_told_what(
    guarded: tuple[NodeProcess, People], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_node, people = guarded

    def error() -> str:
        assert doctor.asked("--node", tls_node.address) == 1
        (text,) = doctor.only["errors"]
        return str(text)

    assert "serves over TLS" in error() and "set MOONPOOL_TLS_CA" in error()
    token = people.token("team-a")
    show(monkeypatch, Credentials(people.client, token))
    eventually(lambda: "token of the admin scope" in error(), 20)
    show(monkeypatch, Credentials(people.client, "mpt_0000"))
    assert "token" in error()
    show(monkeypatch, Credentials(people.foreign, token))
    assert "does not believe MOONPOOL_TLS_CERT" in error()
    show(monkeypatch, Credentials(people.expired, token))
    assert "does not believe MOONPOOL_TLS_CERT" in error()
    believing = replace(people.client, ca=people.foreign.cert)
    show(monkeypatch, Credentials(believing, token))
    assert "its certificate is not believed" in error()


def test_tls_where_there_is_none_is_told_so(
    node: NodeProcess,
    guarded: tuple[NodeProcess, People],
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, people = guarded
    show(monkeypatch, Credentials(people.client, "mpt_0000"))
    assert doctor.asked("--node", node.address) == 1
    assert "serves without TLS: unset MOONPOOL_TLS_CA" in doctor.only["errors"][0]
    capsys.readouterr()
    for asked in (["stat", "--node"], ["health"]):
        assert main([*asked, node.address]) == 1
        assert "it serves without TLS: unset MOONPOOL_TLS_CA" in capsys.readouterr().err


def test_a_certificate_for_another_host_says_how_to_make_the_right_one(
    tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_directory() as place:
        people = People(place / "certs", place / "metadata.db", hosts=("localhost",))
        tls_node = NodeProcess(place, tls=people.node)
        try:
            tls_node.start()
            show(monkeypatch, people.of("team-a", admin=True))
            assert doctor.asked("--node", tls_node.address) == 1
            assert "moonpool certs --node NAME --host 127.0.0.1" in doctor.only["errors"][0]
        finally:
            tls_node.close()
