"""`moonpool doctor --before-start`: a real host looked at, before there is a node; and `health`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.host import look_at
from kvstore.cli.main import main
from kvstore.config import CREDENTIALS, NodeConfig, SsdConfig
from kvstore.disk.local import LocalDisk
from kvstore.limits import GiB, MiB
from tests.auth.people import People
from tests.nodes import NodeProcess, node, short_directory
from tests.unprivileged import unprivileged

__all__ = ["node", "unprivileged"]


class Asked:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *options: object) -> tuple[int, dict[str, Any]]:
        """The exit code, and what is said of the host."""
        code = main(["doctor", "--before-start", "--json", *map(str, options)])
        said = json.loads(self._capsys.readouterr().out)
        assert said["nodes"] == []
        return code, said["host"]


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(capsys)


def test_a_host_on_which_a_node_can_start(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "not" / "there"
    options = ["--dram", "64MiB", "--ssd", f"{disk}:64MiB", "--listen", "127.0.0.1:0"]
    if not direct(tmp_path):
        options.append("--ssd-buffered")
    code, host = asked(*options)
    assert code == 0 and host["errors"] == []
    assert main(["doctor", "--before-start", *options]) == 0
    assert "nothing is in the way of a node here" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def direct(folder: Path) -> bool:
    (found,) = look_at(NodeConfig(folder, ssd=(SsdConfig(folder, GiB),)), None).disks
    return found.direct


def test_a_port_that_another_process_has_is_an_error_that_names_the_option(asked: Asked) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option, value in (
            ("--listen", f"127.0.0.1:{port}"),
            ("--data-port", port),
            ("--metrics", f"127.0.0.1:{port}"),
        ):
            code, host = asked(option, value)
            (error,) = host["errors"]
            assert code == 1 and f"127.0.0.1:{port} ({option})" in error
            assert "another process does" in error
    assert asked("--listen", f"127.0.0.1:{port}")[0] == 0


def test_an_address_of_another_host_is_an_error(asked: Asked, tmp_path: Path) -> None:
    with short_directory() as place:
        people = People(place / "certs", place / "metadata.db")
        code, host = asked("--listen", "192.0.2.1:7410", *shown_to_it(people))
        assert code == 1
        assert "this host has no such address" in host["errors"][0]
        wrong = ["--tls-cert", people.client.cert, "--tls-key", people.client.key]
        code, host = asked("--listen", "127.0.0.1:0", *shown_to_it(people)[:2], *wrong)
        assert code == 1 and "is a certificate of a client" in host["errors"][0]


def shown_to_it(people: People) -> list[str]:
    tls = people.node
    return ["--tls-ca", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]


def test_beyond_loopback_it_takes_certificates(asked: Asked) -> None:
    code, host = asked("--listen", "10.0.0.1:7410")
    assert code == 1 and "over TLS only" in host["errors"][0]


def test_settings_that_a_node_would_refuse_are_errors(asked: Asked) -> None:
    for options, says in (
        (["--slab", "1KiB"], "node.slab"),
        (["--dram", "much"], "--dram = 'much'"),
        (["--ssd", "/data"], "write PATH:SIZE"),
        (["--dram", "900TiB"], "give at most --dram"),
        (["--data-port", "70000"], "node.data_port = 70000"),
        (["--metrics", "9401"], "9401 (--metrics): write HOST:PORT"),
        (["--hbm-device", "1"], "--hbm-device changes nothing without --hbm"),
        (["--metrics", "127.0.0.1"], "127.0.0.1 (--metrics): write HOST:PORT"),
    ):
        code, host = asked(*options)
        assert code == 1 and says in host["errors"][0]


def test_a_disk_without_room_and_one_that_is_a_file(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, host = asked("--ssd", f"{tmp_path}:900TiB", "--ssd-buffered")
    assert code == 1 and "are free: free some" in host["errors"][0]
    code, host = asked("--ssd", f"{tmp_path / 'file'}:1GiB")
    assert code == 1 and "is no directory" in host["errors"][0]


def test_a_folder_that_takes_no_file_is_an_error_that_names_it(
    asked: Asked, tmp_path: Path, unprivileged: None
) -> None:
    (tmp_path / "file").touch()
    code, host = asked("--dir", tmp_path / "file" / "node", "--listen", "127.0.0.1:0")
    assert code == 1 and host["errors"] == [
        f"--dir {tmp_path / 'file' / 'node'}: {tmp_path / 'file'} is no directory"
    ]
    command = [sys.executable, "-m", "kvstore", "doctor", "--before-start", "--json"]
    for option, mode, size in (("--dir", 0o555, ""), ("--ssd", 0o000, ":1GiB")):
        closed = tmp_path / f"{mode:o}"
        closed.mkdir(mode)
        asking = [*command, option, f"{closed / 'node'}{size}"]
        ran = subprocess.run(asking, capture_output=True, timeout=60)
        assert ran.returncode == 1, ran.stderr
        [error] = json.loads(ran.stdout)["host"]["errors"]
        assert f"{option} {closed / 'node'}: {closed} takes no file (Permission denied)" in error


def test_what_an_earlier_node_made_for_another_user_is_an_error(
    tmp_path: Path, unprivileged: None
) -> None:
    path = tmp_path / "ssd"
    LocalDisk.open(path, MiB, MiB, MiB, buffered=True).close()
    node = ["--dram", "64MiB", "--slab", "1MiB", "--ssd", f"{path}:1MiB", "--ssd-buffered"]
    command = [sys.executable, "-m", "kvstore", "doctor", "--before-start", "--json", *node]

    def errors() -> list[str]:
        said = json.loads(subprocess.run(command, capture_output=True, timeout=60).stdout)
        return list(said["host"]["errors"])

    (path / "index").chmod(0o600)  # which a node that owns it mends
    assert not errors()
    (path / "blocks-00000").chmod(0o000)  # as one who is not its owner has it
    [error] = errors()
    assert f"{path / 'blocks-00000'} is not to be read and written: give all that" in error


def test_where_its_node_runs_what_that_has_is_not_in_its_way(
    asked: Asked, node: NodeProcess
) -> None:
    code, host = asked("--dir", node.directory, "--listen", node.address)
    assert code == 0, host
    assert any(f"its node runs, at {node.address}, and" in one for one in host["warnings"])


def test_the_pools_etcd_is_asked_too(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["doctor", "--before-start", "--json", "--etcd", url]) == 1
    said = json.loads(capsys.readouterr().out)
    assert f"--etcd = {url}" in said["errors"][0]


def test_a_metadata_file_that_is_damaged_is_an_error_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "metadata.db").write_bytes(b"?" * 8_192)
    given = ["--metadata", str(file), "--dram", "900TiB"]
    assert main(["doctor", "--before-start", "--json", *given]) == 1
    said = json.loads(capsys.readouterr().out)
    assert f"({file}) cannot be read" in said["errors"][0]
    assert "give at most --dram" in said["host"]["errors"][0]


# moonpool health


def test_health_is_an_exit_code(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--dir", str(node.directory)]) == 0
    assert main(["health", node.address]) == 0
    assert main(["health", f"{node.address}/"]) == 0
    node.kill()
    assert main(["health", node.address]) == 1
    assert main(["health", "--dir", str(node.directory)]) == 1
    assert main(["health", "nowhere"]) == 2
    assert "write HOST:PORT" in capsys.readouterr().err


def test_any_certificate_of_the_authority_may_ask_for_health_and_nobody_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with short_directory() as place:
        (place / "node").mkdir()
        people = People(place / "certs", place / "node" / "metadata.db")
        served = NodeProcess(place / "node", tls=people.node)
        try:
            served.start()
            assert main(["health", served.address]) == 1
            shown = (people.client.ca, people.client.cert, people.client.key)
            for name, path in zip(CREDENTIALS, shown, strict=False):
                monkeypatch.setenv(name, os.fspath(path))
            assert main(["health", served.address]) == 0
            assert main(["health", "--plain", served.address]) == 1
        finally:
            served.close()


def test_a_gateway_that_is_not_there_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["health", f"http://127.0.0.1:{port}"]) == 1
    assert "does not answer" in capsys.readouterr().err
