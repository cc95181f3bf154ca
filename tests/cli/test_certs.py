"""`moonpool certs`, `tenant` and `token`: what they make, what they print, what they refuse."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from cryptography import x509

from kvstore.cli.main import main
from kvstore.config import TlsConfig
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority
from kvstore.rpc.tls import check_role
from tests.nodes import NodeProcess, node

__all__ = ["node"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_without_names_one_of_each_role_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    code, printed, _ = run(capsys, "certs", str(folder), "--host", "10.0.0.1", "--host", "h1")
    assert code == 0
    for role in (Role.NODE, Role.CONDUCTOR, Role.CLIENT):
        stem = folder / f"{role.value}-{role.value}"
        tls = TlsConfig(folder / "ca.pem", stem.with_suffix(".pem"), stem.with_suffix(".key"))
        check_role(tls, role)
        assert str(tls.cert) in printed and str(tls.key) in printed
        assert tls.key.stat().st_mode & 0o777 == 0o600
        names = x509.load_pem_x509_certificate(tls.cert.read_bytes()).extensions
        stated = names.get_extension_for_class(x509.SubjectAlternativeName).value
        assert len(stated) == (1 if role is Role.CLIENT else 6)
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600
    assert "--tls-ca" in printed and "export MOONPOOL_TLS_CA=" in printed


def test_nothing_is_overwritten_and_an_authority_signs_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    assert run(capsys, "certs", str(folder), "--node", "a")[0] == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, _, error = run(capsys, "certs", str(folder), "--node", "b", "--node", "a")
    assert code == 2 and "node-a.pem" in error
    assert {path: path.read_bytes() for path in folder.iterdir()} == before, "b was not made either"
    code, printed, _ = run(capsys, "certs", str(folder), "--node", "b")
    assert code == 0 and "signed by" in printed
    assert {path: path.read_bytes() for path in before} == before
    (folder / "ca.key").unlink()
    code, _, error = run(capsys, "certs", str(folder), "--node", "c")
    assert code == 2 and "no authority that can sign" in error


def test_the_key_of_another_authority_signs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        assert run(capsys, "certs", str(folder), "--client", "a")[0] == 0
    (other / "ca.key").replace(one / "ca.key")
    code, _, error = run(capsys, "certs", str(one), "--node", "b")
    assert code == 2 and f"{one / 'ca.key'} is not the key of {one / 'ca.pem'}" in error
    assert not (one / "node-b.pem").exists() and not (one / "node-b.key").exists()


def test_no_certificate_says_that_it_holds_for_longer_than_its_authority_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    assert run(capsys, "certs", str(folder), "--client", "a", "--days", "2")[0] == 0
    code, printed, _ = run(capsys, "certs", str(folder), "--client", "b", "--days", "9")
    ends = {
        name: x509.load_pem_x509_certificate((folder / name).read_bytes()).not_valid_after_utc
        for name in ("ca.pem", "client-b.pem")
    }
    assert code == 0 and ends["client-b.pem"] == ends["ca.pem"]
    assert f"{ends['ca.pem']:%Y-%m-%d}" in printed


def test_an_authority_that_is_over_signs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Authority.make(tmp_path, -datetime.timedelta(days=1))
    code, _, error = run(capsys, "certs", str(tmp_path), "--node", "a")
    assert code == 2 and "is over" in error
    assert not (tmp_path / "node-a.key").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        *(["--node", "../x"], ["--client", "é"], ["--days", "0"], ["--days", "9999999"]),
        *(["--host", "é"], ["--host", "10.0.0.1:7410"], ["--host", "http://a"]),
        *(["--host", "10.0.0.300"], ["--host", "[::1]"], ["--host", ""]),
    ],
)
def test_what_cannot_be_in_a_certificate_is_refused(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(capsys, "certs", str(tmp_path / "certs"), *wrong)
    assert code == 2 and wrong[0] in error
    assert not (tmp_path / "certs").exists(), "an authority was made for it"


def test_tenants_and_tokens_are_made_listed_and_revoked(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(node.directory)]
    assert run(capsys, "tenant", "add", "team-a", *where)[0] == 0
    code, _, error = run(capsys, "tenant", "add", "team-a", *where)
    assert code == 2 and "there already" in error
    code, _, error = run(capsys, "tenant", "add", "team a", *where)
    assert code == 2 and "letters, digits" in error
    assert run(capsys, "tenant", "ls", *where)[1] == "default\nteam-a\n"

    code, token, _ = run(
        capsys, "token", "new", "--tenant", "team-a", "--admin", "--days", "3", *where
    )
    assert code == 0 and token.startswith("mpt_")
    name = token.split("_")[1]
    listed = json.loads(run(capsys, "token", "ls", "--json", *where)[1])
    assert (listed["id"], listed["tenant"], listed["admin"]) == (name, "team-a", True)
    code, printed, _ = run(capsys, "token", "ls", *where)
    assert "3 days left" in printed and token.strip() not in printed
    code, _, error = run(capsys, "token", "new", "--tenant", "nobody", *where)
    assert code == 2 and "moonpool tenant add" in error
    assert run(capsys, "token", "revoke", name, *where)[0] == 0
    assert run(capsys, "token", "revoke", name, *where)[0] == 2
    assert run(capsys, "token", "ls", *where)[1] == ""


def test_metadata_that_nodes_of_a_host_share_is_named_as_they_name_it(
    node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(tmp_path), "--metadata", str(node.directory / "metadata.db")]
    assert run(capsys, "tenant", "add", "team-b", *where)[0] == 0
    assert run(capsys, "token", "new", "--tenant", "team-b", *where)[1].startswith("mpt_")
    assert run(capsys, "share", "team-b", "--weight", "2", *where)[0] == 0
    code, _, error = run(capsys, "tenant", "ls", *where, "--etcd", "http://127.0.0.1:1")
    assert code == 2 and "--etcd and --metadata" in error


def test_where_no_node_has_run_there_is_nothing_to_add_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(capsys, "tenant", "add", "a", "--dir", str(tmp_path / "none"))
    assert code == 1 and "no node has kept its metadata" in error


def test_a_name_that_is_given_twice_is_one_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = run(capsys, "certs", str(tmp_path), "--node", "a", "--node", "a")
    assert code == 0 and printed.count("node a: ") == 1
