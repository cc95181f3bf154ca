"""An etcd that asks who calls: users with passwords, tokens it forgets, certificates of its CA."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aetcd.rpc import rpc_pb2 as pb

from kvstore.config import EtcdConfig
from kvstore.errors import ConfigError, Denied, Unavailable
from kvstore.metadata import StoreClosed, open_metadata
from kvstore.metadata.etcd import EtcdMetadata, endpoints
from tests.etcd import Certificates, EtcdProcess, need_etcd

USER, PASSWORD = "moonpool", "correct horse"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EtcdProcess]:
    """It knows one user, who may use the pool `default`."""
    need_etcd()
    etcd = EtcdProcess(tmp_path / "etcd")
    try:
        etcd.start()
        etcd.ask_for_users(USER, PASSWORD, b"moonpool/default/")
        yield etcd
    finally:
        etcd.kill()


@contextlib.asynccontextmanager
async def opened(etcd: EtcdProcess, **settings: Any) -> Any:
    store = EtcdMetadata(EtcdConfig((etcd.url,), **settings))
    try:
        yield store
    finally:
        await store.close()


async def test_a_user_uses_the_pool_and_nothing_else(guarded: EtcdProcess) -> None:
    async with opened(guarded, user=USER, password=PASSWORD) as store:
        lease = await store.grant(5_000)
        start = await store.put("nodes/a", b"", lease=lease.id)
        await store.keep_alive(lease)
        assert await store.put_if("k", b"", expected_revision=0)
        assert len((await store.list(""))[0]) == 2
        async with contextlib.aclosing(store.watch("nodes/", start)) as watch:
            await store.revoke(lease)
            assert (await asyncio.wait_for(anext(watch), 10)).entry.key == "nodes/a"
    async with opened(guarded, user=USER, password=PASSWORD, cluster="other") as store:
        for call in (
            store.get("k"),
            store.put("k", b""),
            store.list(""),
            anext(store.watch("", 0)),
        ):
            with pytest.raises(Denied, match="readwrite on moonpool/"):
                await call


async def test_who_gives_no_user_or_a_wrong_password_is_told_what_to_set(
    guarded: EtcdProcess,
) -> None:
    for settings in ({}, {"user": USER, "password": "wrong"}, {"user": "who", "password": "x"}):
        async with opened(guarded, **settings) as store:
            for call in (store.get("k"), store.put("k", b""), anext(store.watch("", 0))):
                with pytest.raises(Denied, match="MOONPOOL_ETCD_USER") as caught:
                    await call
                assert "wrong" not in str(caught.value)


async def test_a_user_is_no_hindrance_where_etcd_asks_for_none(
    shared_etcd: EtcdProcess | None,
) -> None:
    need_etcd()
    assert shared_etcd is not None
    async with opened(shared_etcd, cluster="open", user=USER, password=PASSWORD) as store:
        assert await store.put("k", b"")


async def test_a_token_that_etcd_forgot_is_asked_for_anew(guarded: EtcdProcess) -> None:
    async with opened(guarded, user=USER, password=PASSWORD) as store:
        start = await store.put("k/a", b"1")
        watching = asyncio.ensure_future(anext(store.watch("k/", start)))
        await asyncio.sleep(0.2)
        first = store._endpoints._token._text
        # In order: one that is killed gives it out again, as it makes good what was not written.
        await asyncio.to_thread(guarded.stop)
        await asyncio.to_thread(guarded.start)  # which has forgotten all tokens
        for _ in range(100):
            with contextlib.suppress(Unavailable):
                await store.put("k/b", b"2")
                break
        assert (await asyncio.wait_for(watching, 60)).entry.key == "k/b"
        assert store._endpoints._token._text not in ("", first)


async def test_a_token_that_is_spoiled_is_refused_once_and_replaced(guarded: EtcdProcess) -> None:
    async with opened(guarded, user=USER, password=PASSWORD) as store:
        start = await store.put("k/a", b"1")
        for call in (
            lambda: store.get("k/a"),
            lambda: store.put("k/a", b"2"),
            lambda: anext(store.watch("k/", start)),
        ):
            store._endpoints._token._text = "spoiled.1"
            await asyncio.wait_for(call(), 10)
            assert store._endpoints._token._text != "spoiled.1"


async def test_what_operators_change_of_users_refuses_no_call(guarded: EtcdProcess) -> None:
    async with opened(guarded, user=USER, password=PASSWORD) as store:
        await store.put("k", b"")
        token = guarded.root_token()
        guarded.call("Auth", "RoleAdd", pb.AuthRoleAddRequest(name="later"), token=token)
        assert await store.get("k") is not None  # etcd says: revision of auth store is old
        assert await store.put("k", b"")


async def test_an_etcd_that_asks_for_users_later_than_it_was_called_is_told_of_one(
    tmp_path: Path,
) -> None:
    need_etcd()
    etcd = EtcdProcess(tmp_path / "etcd")
    try:
        etcd.start()
        async with opened(etcd, user=USER, password=PASSWORD) as store:
            start = await store.put("k/a", b"1")
            lease = await store.grant(60_000)
            await asyncio.to_thread(etcd.ask_for_users, USER, PASSWORD, b"moonpool/default/")
            for call in (
                lambda: store.get("k/a"),
                lambda: store.put("k/a", b"2"),
                lambda: store.list(""),
                lambda: store.keep_alive(lease),
                lambda: anext(store.watch("k/", start)),
            ):
                store._endpoints._token._text = ""  # what was told for want of users
                await asyncio.wait_for(call(), 10)
        async with opened(etcd) as store:
            with pytest.raises(Denied, match="asks for a user"):
                await store.get("k/a")
    finally:
        etcd.kill()


async def test_many_calls_share_one_token(
    guarded: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    authenticate = endpoints.Endpoint.authenticate

    async def counted(self: Any, *given: Any) -> str:
        nonlocal asked
        asked += 1
        return await authenticate(self, *given)

    monkeypatch.setattr(endpoints.Endpoint, "authenticate", counted)
    async with opened(guarded, user=USER, password=PASSWORD) as store:
        await asyncio.gather(*(store.put(f"k/{number}", b"") for number in range(20)))
        assert asked == 1


async def test_certificates_of_one_ca_let_in_and_others_do_not(tmp_path: Path) -> None:
    need_etcd()
    ours, theirs = Certificates.make(tmp_path / "ours"), Certificates.make(tmp_path / "theirs")
    etcd = EtcdProcess(tmp_path / "etcd", certificates=ours)
    try:
        etcd.start()
        async with opened(etcd, ca=ours.ca, cert=ours.cert, key=ours.key) as store:
            start = await store.put("k/a", b"1")
            lease = await store.grant(5_000)
            await store.keep_alive(lease)
            async with contextlib.aclosing(store.watch("k/", start)) as watch:
                await store.put("k/b", b"2")
                assert (await asyncio.wait_for(anext(watch), 10)).entry.key == "k/b"
        for wrong in (
            {"ca": theirs.ca, "cert": ours.cert, "key": ours.key},  # we do not know etcd
            {"ca": ours.ca, "cert": theirs.cert, "key": theirs.key},  # etcd does not know us
            {"ca": ours.ca},  # and asks for a certificate
        ):
            async with opened(etcd, **wrong) as store:
                with pytest.raises(Unavailable, match=r"https://127\.0\.0\.1"):
                    await store.get("k/a")
    finally:
        etcd.kill()


async def test_certificates_that_were_renewed_on_disk_are_shown_without_a_restart(
    tmp_path: Path,
) -> None:
    need_etcd()
    before, after = Certificates.make(tmp_path / "before"), Certificates.make(tmp_path / "after")
    named = {name: tmp_path / name for name in ("ca", "cert", "key")}

    def renew(new: Certificates) -> None:
        for name, path in named.items():
            shutil.copyfile(getattr(new, name), path)

    renew(before)
    etcd = EtcdProcess(tmp_path / "etcd", certificates=before)
    try:
        etcd.start()
        async with opened(etcd, **named) as store:
            start = await store.put("k/a", b"1")
            async with contextlib.aclosing(store.watch("k/", start)) as watch:
                change = asyncio.ensure_future(anext(watch))
                last = weakref.ref(store._endpoints.first)
                etcd.certificates = after
                await asyncio.to_thread(etcd.restart)
                with pytest.raises(Unavailable):
                    await store.get("k/a")
                shutil.copyfile(after.cert, named["cert"])  # a renewal that is half done
                with pytest.raises(Unavailable):
                    await store.get("k/a")
                renew(after)
                assert (await store.get("k/a")) is not None
                await store.put("k/b", b"2")
                assert (await asyncio.wait_for(change, 60)).entry.key == "k/b"
                while last() is not None:  # the connection before is closed
                    await asyncio.sleep(0.01)
    finally:
        etcd.kill()


def test_a_certificate_that_cannot_be_read_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("not a certificate")
    for ca in (tmp_path / "none.pem", tmp_path / "text.pem", tmp_path):
        with pytest.raises(ConfigError, match=f"--etcd-ca = {ca}"):
            open_metadata(EtcdConfig(("https://127.0.0.1:1",), ca=ca))


async def test_calls_that_wait_for_one_token_end_in_time_where_nobody_gives_it(
    guarded: EtcdProcess,
) -> None:
    async with opened(guarded, user=USER, password=PASSWORD) as store:
        await store.put("k", b"")
        store._endpoints._token._text = None  # as when etcd has forgotten it
        guarded.pause()
        calls = asyncio.gather(*(store.get("k") for _ in range(10)), return_exceptions=True)
        answers = await asyncio.wait_for(calls, 30)
    assert [type(answer) for answer in answers] == [Unavailable] * 10, answers


async def test_calls_that_wait_for_one_token_as_their_client_closes_say_so_unless_cancelled(
    guarded: EtcdProcess,
) -> None:
    async with opened(guarded, user=USER, password=PASSWORD) as store:
        start = await store.put("k", b"")
        store._endpoints._token._text = None
        guarded.pause()
        calls = [store.get("k"), store.put("k", b""), store.list(""), anext(store.watch("", start))]
        under_way = asyncio.gather(*calls, return_exceptions=True)
        cancelled = asyncio.create_task(store.get("k"))
        await asyncio.sleep(0.3)
        cancelled.cancel()
        await store.close()
        answers = await asyncio.wait_for(under_way, 30)
    assert [type(answer) for answer in answers] == [StoreClosed] * len(calls), answers
    with pytest.raises(asyncio.CancelledError):
        await cancelled
