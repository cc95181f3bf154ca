"""What a node makes of tenants and tokens that come and go while it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.cli.main import main
from kvstore.config import Credentials
from kvstore.errors import Unavailable
from kvstore.metadata import Change, open_metadata
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.records import TenantRecord, TokenRecord
from kvstore.metadata.tenants import Tenants, new_tenant
from kvstore.metadata.tokens import id_of, make
from kvstore.wire.v1 import kv_pb2 as pb
from tests.auth.people import People, admitted
from tests.nodes import Caller, NodeProcess, eventually, prompt, refused

CODE = grpc.StatusCode
WITHIN_SECONDS = 2.0  # revocation, in all nodes, while the metadata is there


def test_a_new_tenant_and_its_token_work_at_once_and_a_revoked_one_no_more(
    people: People, tls_node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(tls_node.directory)]
    assert main(["tenant", "add", "new-team", *where]) == 0
    capsys.readouterr()
    assert main(["token", "new", "--tenant", "new-team", *where]) == 0
    token = capsys.readouterr().out.strip()
    caller = eventually(lambda: admitted(tls_node, Credentials(people.client, token)))
    caller.register()
    assert caller.put(prompt(1)) == [pb.PutReply.STORED]
    assert caller.match(prompt(1))[0] == 1

    assert main(["token", "revoke", token.split("_")[1], *where]) == 0
    revoked = time.monotonic()
    with pytest.raises(grpc.RpcError) as ended:
        next(caller.stream)  # of the session, which would go on until somebody hangs up
    assert ended.value.code() is CODE.UNAUTHENTICATED
    assert refused(lambda: caller.match(prompt(1))).kind == "Unauthenticated"
    assert time.monotonic() - revoked < 10 * WITHIN_SECONDS  # of a machine that is busy
    assert admitted(tls_node, Credentials(people.client, token)) is None


def test_a_token_that_is_over_ends_its_streams_too(people: People, tls_node: NodeProcess) -> None:
    def admitted_for_a_while() -> Caller | None:
        return admitted(tls_node, Credentials(people.client, people.token("team-a", seconds=4)))

    caller = eventually(admitted_for_a_while)
    with pytest.raises(grpc.RpcError):
        next(caller.stream)
    assert refused(lambda: caller.match(prompt(1))).kind == "Unauthenticated"


@pytest.fixture
def store(tmp_path: Path) -> Callable[[], EmbeddedMetadata]:
    def opened() -> EmbeddedMetadata:
        found = open_metadata(str(tmp_path / "metadata.db"))
        assert isinstance(found, EmbeddedMetadata)
        return found

    return opened


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def put(store: EmbeddedMetadata, record: TenantRecord | TokenRecord) -> None:
    await store.put(record.key(), record.encode())


def test_a_token_counts_until_its_end_and_only_for_a_tenant_that_is_known(
    store: Callable[[], EmbeddedMetadata],
) -> None:
    async def test() -> None:
        metadata, now = store(), [1_000.0]
        tenants = Tenants(metadata, lambda: now[0])
        good, of_a = make("a", False, 2_000)
        stray, of_nobody = make("nobody", True, 2_000)
        for record in (new_tenant("a"), of_a, of_nobody):
            await put(metadata, record)
        await tenants.load()
        found = tenants.bearer(good)
        assert found is not None and (found.tenant, found.admin) == ("a", False)
        assert tenants.bearer(stray) is None
        # The id says which record it would be; the whole token has to be the one it was made for.
        other, _ = make("a", False, 2_000)
        forged = "_".join((*good.split("_")[:2], other.split("_")[2]))
        assert id_of(forged) == id_of(good)
        for text in (forged, other, "", "mpt__", good.upper(), good + "0", good[:-1]):
            assert tenants.bearer(text) is None, text
        now[0] = 2_000.0
        assert tenants.bearer(good) is None
        await metadata.close()

    asyncio.run(test())


def test_no_record_holds_a_token(store: Callable[[], EmbeddedMetadata]) -> None:
    token, record = make("a", True, 1)
    assert token.split("_")[2] not in record.encode().decode() + repr(record)


class Cut:
    """A metadata store between which and a node the line can be cut."""

    def __init__(self, store: EmbeddedMetadata) -> None:
        self._store = store
        self.cut = asyncio.Event()
        self.lists = 0

    async def list(self, prefix: str) -> Any:
        if self.cut.is_set():
            raise Unavailable("the line is cut")
        self.lists += 1
        return await self._store.list(prefix)

    async def put_if(self, *args: Any, **options: Any) -> Any:
        return await self._store.put_if(*args, **options)

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Change, None]:
        changes = self._store.watch(prefix, revision)
        broken = asyncio.create_task(self.cut.wait())
        while True:
            following = asyncio.ensure_future(anext(changes))
            await asyncio.wait([following, broken], return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                raise Unavailable("the line is cut")
            yield following.result()


def test_without_metadata_a_node_goes_by_what_it_knows_and_catches_up_later(
    store: Callable[[], EmbeddedMetadata],
) -> None:
    async def test() -> None:
        metadata = store()
        line = Cut(metadata)
        tenants = Tenants(line)  # type: ignore[arg-type]
        old, of_a = make("a", False, 1 << 40)
        new, of_b = make("b", False, 1 << 40)
        await put(metadata, new_tenant("a"))
        await put(metadata, of_a)
        await tenants.load()
        keeping = asyncio.create_task(tenants.keep())
        await until(lambda: line.lists >= 4)
        line.cut.set()
        await put(metadata, new_tenant("b"))
        await put(metadata, of_b)
        await metadata.delete(of_a.key())
        await asyncio.sleep(1.2)
        assert tenants.bearer(old) is not None and tenants.bearer(new) is None
        assert not keeping.done(), "it goes on asking"
        line.cut.clear()
        await until(lambda: tenants.bearer(new) is not None and tenants.bearer(old) is None)
        assert tenants.knows("a") and tenants.knows("b")
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await metadata.close()

    asyncio.run(test())


def test_changes_that_were_compacted_away_are_not_missed(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "metadata.db"
        metadata, forgetful = EmbeddedMetadata(path), EmbeddedMetadata(path, changes_kept=1)
        tenants = Tenants(metadata)
        await tenants.load()
        keeping = asyncio.create_task(tenants.keep())
        for number in range(50):  # more than one look of the watch may see
            await put(forgetful, new_tenant(f"t{number}"))
        await until(lambda: all(tenants.knows(f"t{number}") for number in range(50)))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await metadata.close()
        await forgetful.close()

    asyncio.run(test())


def test_a_record_that_cannot_be_read_counts_as_none(
    store: Callable[[], EmbeddedMetadata], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        metadata = store()
        token, record = make("a", False, 1 << 40)
        long = TenantRecord("x" * 65, "00" * 32)
        short = TenantRecord("short", "00")
        for one in (new_tenant("a"), record, long, short):
            await put(metadata, one)
        tenants = Tenants(metadata)
        await tenants.load()
        assert tenants.bearer(token) is not None
        assert not tenants.knows(long.name) and not tenants.knows("short")
        keeping = asyncio.create_task(tenants.keep())
        await metadata.put(record.key(), b'{"id":"not it"}')
        await until(lambda: tenants.bearer(token) is None)
        assert f"{record.key()}: missing" in caplog.text
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await metadata.close()

    asyncio.run(test())


def test_a_tenant_that_is_passed_over_is_said_once_however_often_others_change(
    store: Callable[[], EmbeddedMetadata], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        metadata = store()
        tenants = Tenants(metadata)
        await put(metadata, TenantRecord("short", "00"))
        await tenants.load()
        keeping = asyncio.create_task(tenants.keep())
        for name in ("a", "b", "c"):
            await put(metadata, new_tenant(name))
            await until(lambda name=name: tenants.knows(name))  # type: ignore[misc]
        assert caplog.text.count("tenants/short") == 1
        await put(metadata, TenantRecord("short", "00ff"))
        await until(lambda: caplog.text.count("tenants/short") == 2)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await metadata.close()

    asyncio.run(test())


def test_who_is_known_stays_known_and_keeps_its_secret(
    store: Callable[[], EmbeddedMetadata],
) -> None:
    """Metadata that was lost and is empty now costs tokens, not blocks."""

    async def test() -> None:
        metadata = store()
        await put(metadata, new_tenant("a"))
        tenants = Tenants(metadata)
        await tenants.load()
        before = dict(tenants.secrets)
        keeping = asyncio.create_task(tenants.keep())
        await metadata.delete("tenants/a")
        await put(metadata, new_tenant("b"))
        await until(lambda: tenants.knows("b"))
        assert {name: tenants.secrets[name] for name in before} == before
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await metadata.close()

    asyncio.run(test())
