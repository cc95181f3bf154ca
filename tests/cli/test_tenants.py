"""`moonpool tenant` and `moonpool token`, on the metadata of nodes that do not run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from kvstore.cli import tenants
from kvstore.cli.main import main
from kvstore.config import NodeConfig
from kvstore.metadata import open_metadata
from kvstore.metadata.records import TokenRecord
from kvstore.metadata.tenants import new_tenant
from kvstore.metadata.tokens import make
from tests.etcd import EtcdProcess, need_etcd

HOUR_SECONDS = 3_600


def put(directory: Path, *records: object) -> None:
    async def run() -> None:
        store = open_metadata(str(NodeConfig(directory).metadata_file))
        for record in records:
            await store.put(record.key(), record.encode())
        await store.close()

    asyncio.run(run())


def ids(directory: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert main(["token", "ls", "--dir", str(directory)]) == 0
    return {line.split()[0] for line in capsys.readouterr().out.splitlines()}


def over_since(hours: float) -> TokenRecord:
    return make("a", False, int(time.time() - hours * HOUR_SECONDS))[1]


def test_a_new_token_takes_the_place_of_those_that_are_over_by_every_hosts_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, older = over_since(hours=25), over_since(hours=1_000)
    recent, good = over_since(hours=23), over_since(hours=-1)
    put(tmp_path, new_tenant("a"), old, older, recent, good)
    assert ids(tmp_path, capsys) == {old.id, older.id, recent.id, good.id}
    assert main(["token", "new", "--tenant", "a", "--dir", str(tmp_path)]) == 0
    made = capsys.readouterr().out.split("_")[1]
    assert ids(tmp_path, capsys) == {recent.id, good.id, made}


def test_no_tenant_and_no_token_is_made_that_nodes_would_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "TENANTS_MAX", 2)
    monkeypatch.setattr(tenants, "TOKENS_MAX", 1)
    where = ["--dir", str(tmp_path)]
    put(tmp_path, new_tenant("a"))
    for name, code in (("b", 0), ("c", 2)):
        assert main(["tenant", "add", name, *where]) == code
    assert "there are 2 tenants, and nodes know 2 at most" in capsys.readouterr().err
    for name, code in (("a", 0), ("b", 2)):
        assert main(["token", "new", "--tenant", name, *where]) == code
    assert "there are 1 tokens, and nodes know 1 at most" in capsys.readouterr().err
    assert len(ids(tmp_path, capsys)) == 1


def test_where_no_token_is_made_none_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = over_since(hours=25)
    put(tmp_path, new_tenant("a"), old)
    assert main(["token", "new", "--tenant", "b", "--dir", str(tmp_path)]) == 2
    assert "there is no tenant 'b'" in capsys.readouterr().err
    assert ids(tmp_path, capsys) == {old.id}


def test_a_token_is_revoked_by_its_id_or_as_it_is_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, new_tenant("a"))
    where = ["--dir", str(tmp_path)]
    for given in (lambda token: token, lambda token: token.split("_")[1]):
        assert main(["token", "new", "--tenant", "a", *where]) == 0
        token = capsys.readouterr().out.strip()
        name = token.split("_")[1]
        assert main(["token", "revoke", given(token), *where]) == 0
        assert capsys.readouterr().out == f"revoked {name}\n" and ids(tmp_path, capsys) == set()
        for wrong in (token, token[:-1], token[4:], f"{token}\n"):
            assert main(["token", "revoke", wrong, *where]) == 2
            told = "".join(capsys.readouterr())
            assert "token ls" in told and token.split("_")[2][:8] not in told
        assert main(["token", "revoke", name, *where]) == 2
        assert f"there is no token {name!r}" in capsys.readouterr().err


def test_a_tenant_is_added_to_a_pool_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a mistyped cluster is one, too: it is made by the first word in it."""
    need_etcd()
    etcd = EtcdProcess(tmp_path / "etcd").start()
    try:
        where = ["--etcd", etcd.url, "--cluster", "typo"]
        assert main(["tenant", "add", "a", *where]) == 0
        assert f"added a to cluster 'typo' of {etcd.url};" in capsys.readouterr().out
    finally:
        etcd.stop()
