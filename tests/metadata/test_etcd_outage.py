"""etcd killed, stopped, started again, started anew: calls end in time, watches go on where they
were, and nobody takes the silence for peace."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.config import EtcdConfig
from kvstore.errors import Unavailable
from kvstore.metadata import Compacted, Kind, LeaseLost, StoreClosed
from kvstore.metadata.etcd import EtcdMetadata, stream, watch
from kvstore.metadata.etcd.endpoint import Endpoint
from kvstore.metadata.etcd.endpoints import CALL_SECONDS, Endpoints
from tests.etcd import EtcdProcess, need_etcd, three_members

SLACK_SECONDS = 10.0  # on top of a deadline, for a busy machine


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    need_etcd()
    started = EtcdProcess(tmp_path / "etcd")
    try:
        yield started.start()
    finally:
        started.kill()


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[list[EtcdProcess]]:
    need_etcd()
    members = three_members(tmp_path)
    try:
        yield members
    finally:
        for member in members:
            member.kill()


@contextlib.asynccontextmanager
async def opened(*members: EtcdProcess) -> AsyncIterator[EtcdMetadata]:
    store = EtcdMetadata(EtcdConfig(tuple(member.url for member in members)))
    try:
        yield store
    finally:
        await store.close()


async def again(call: Any) -> Any:
    """The answer of a call that may be made again, once there is one."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Unavailable):
                return await call()
            await asyncio.sleep(0.05)


async def run(act: Any) -> None:
    await asyncio.to_thread(act)


async def test_calls_end_in_time_while_etcd_is_gone_and_work_again_when_it_is_back(
    etcd: EtcdProcess,
) -> None:
    async with opened(etcd) as store:
        lease = await store.grant(60_000)
        await store.put("k", b"before")
        for away, back in ((etcd.kill, etcd.start), (etcd.pause, etcd.resume)):
            away()
            begun = time.monotonic()
            calls = [
                *(store.get("k"), store.list(""), store.grant(2_000), store.delete("j")),
                *(store.put("k", b"lost"), store.put_if("k", b"lost", expected_revision=1)),
                *(store.delete_if("k", expected_revision=1), store.keep_alive(lease)),
                store.revoke(lease),
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - begun < 2 * CALL_SECONDS + SLACK_SECONDS
            assert [type(answer) for answer in answers] == [Unavailable] * len(calls), answers
            assert all(etcd.url in str(answer) for answer in answers)
            await run(back)
            assert (await again(lambda: store.get("k"))) is not None
            assert await again(lambda: store.put("k", b"after"))


async def test_a_write_waits_for_an_etcd_that_is_back_before_the_deadline(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.metadata.etcd.endpoints.CALL_SECONDS", 20.0)
    async with opened(etcd) as store:
        before = await store.put("k", b"before")
        etcd.kill()
        while store._endpoints.first.connected:  # its end is noticed soon
            await asyncio.sleep(0.01)
        writing = asyncio.create_task(store.put_if("k", b"after", expected_revision=before))
        await asyncio.sleep(0.2)
        assert not writing.done(), "nothing was sent yet, so it may wait"
        await run(etcd.start)
        assert await writing is not None


async def test_a_watch_loses_and_repeats_nothing_over_restarts_of_etcd(etcd: EtcdProcess) -> None:
    seen: list[tuple[Kind, str, bytes, int]] = []
    put: list[tuple[str, bytes]] = []

    async def follow(store: EtcdMetadata, start: int) -> None:
        async for one in store.watch("k/", start):
            seen.append((one.kind, one.entry.key, one.entry.value, one.revision))

    async def write(store: EtcdMetadata) -> None:
        for number in range(60):
            key, value = f"k/{number % 5}", str(number).encode()

            async def done(key: str = key, value: bytes = value) -> bool:
                # Read before repeating: a write that got no answer may have been made.
                found = await store.get(key)
                if found is None or found.value != value:
                    await store.put(key, value)
                return True

            await again(done)
            put.append((key, value))
            await asyncio.sleep(0.05)

    async with opened(etcd) as store, opened(etcd) as writer:
        _, start = await store.list("k/")
        following = asyncio.create_task(follow(store, start))
        writing = asyncio.create_task(write(writer))
        for _ in range(3):
            await asyncio.sleep(0.5)
            await run(etcd.restart)
        await writing
        async with asyncio.timeout(60):
            while [(key, value) for _, key, value, _ in seen] != put:
                assert not following.done(), following
                await asyncio.sleep(0.05)
        following.cancel()
    revisions = [revision for *_, revision in seen]
    assert revisions == sorted(set(revisions))


async def test_a_watch_goes_on_when_an_etcd_that_was_stopped_runs_again(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ASK_SECONDS", 0.3)
    monkeypatch.setattr(stream, "ANSWER_SECONDS", 0.3)
    async with opened(etcd) as store, opened(etcd) as writer:
        start = await store.put("k/a", b"1")
        async with contextlib.aclosing(store.watch("k/", start)) as changes:
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(1.0)  # asked whether it lives, and it does
            etcd.pause()
            await asyncio.sleep(2.0)
            etcd.resume()
            await again(lambda: writer.put("k/b", b"2"))
            assert (await waiting).entry.key == "k/b"


async def test_a_watch_goes_on_though_what_it_has_given_was_compacted(etcd: EtcdProcess) -> None:
    async with opened(etcd) as store:
        _, start = await store.list("")
        async with contextlib.aclosing(store.watch("k/", start)) as changes:
            for number in range(5):
                await store.put(f"k/{number}", b"")
            seen = [(await anext(changes)).entry.key for _ in range(5)]
            etcd.compact()
            await run(etcd.restart)
            await again(lambda: store.put("k/5", b""))
            seen.append((await asyncio.wait_for(anext(changes), 15)).entry.key)
    assert seen == [f"k/{number}" for number in range(6)]


async def test_a_quiet_watch_keeps_its_stream(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(stream, "ANSWER_SECONDS", 5.0)
    begun, begin = 0, stream.Stream.begin

    async def counted(self: stream.Stream, request: Any) -> None:
        nonlocal begun
        begun += 1
        await begin(self, request)

    monkeypatch.setattr(stream.Stream, "begin", counted)
    async with opened(etcd) as store:
        start = await store.put("k/a", b"1")
        async with contextlib.aclosing(store.watch("k/", start)) as changes:
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(7.0)
            await store.put("k/a", b"2")
            assert (await asyncio.wait_for(waiting, 30)).entry.value == b"2"
    assert begun == 1


async def test_calls_under_way_when_a_client_closes_say_so_at_once(etcd: EtcdProcess) -> None:
    async with opened(etcd) as store:
        start = await store.put("k", b"")
        etcd.pause()
        calls = [store.get("k"), store.put("k", b""), store.list(""), anext(store.watch("", start))]
        under_way = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0.3)
        await store.close()
        answers = await asyncio.wait_for(under_way, 30)
    assert [type(answer) for answer in answers] == [StoreClosed] * len(calls), answers


async def test_a_call_that_fails_as_its_client_closes_says_that_it_was_closed() -> None:
    endpoints = Endpoints(EtcdConfig(("http://127.0.0.1:1",)))

    async def fails(*_: object, **__: object) -> None:
        await endpoints.close()
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "cut off")

    with pytest.raises(StoreClosed):
        await endpoints.ask(lambda _: fails, None)


async def test_a_watch_that_begins_as_its_client_closes_says_so_unless_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = asyncio.Event()

    class Connecting:
        async def write(self, _: object) -> None:
            await gone.wait()
            raise asyncio.CancelledError  # gRPC's word for a call whose channel was closed

    monkeypatch.setattr(Endpoint, "watch", lambda *_: Connecting())
    endpoints = Endpoints(EtcdConfig(("http://127.0.0.1:1",)))
    begun = [asyncio.create_task(stream.Stream(endpoints).begin(None)) for _ in range(2)]
    await asyncio.sleep(0.1)
    begun[1].cancel()
    await endpoints.close()
    gone.set()
    ended, cancelled = await asyncio.gather(*begun, return_exceptions=True)
    assert (type(ended), type(cancelled)) == (StoreClosed, asyncio.CancelledError)


@pytest.mark.parametrize("away", ["kill", "pause"])
async def test_a_watch_does_not_take_silence_for_peace(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    monkeypatch.setattr(stream, "ASK_SECONDS", 0.3)
    monkeypatch.setattr(stream, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(watch, "WATCH_SECONDS", 4.0)
    async with opened(etcd) as store:
        start = await store.put("k/a", b"1")
        changes = store.watch("k/", start)
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(6.0)
        assert not waiting.done(), "nothing changed, and etcd said that it lives"
        getattr(etcd, away)()
        with pytest.raises(Unavailable, match="watch again"):
            await asyncio.wait_for(waiting, 60)


async def test_an_etcd_that_lost_its_data_is_not_watched_as_if_nothing_had_changed(
    etcd: EtcdProcess,
) -> None:
    async with opened(etcd) as store:
        lease = await store.grant(60_000)
        for _ in range(5):
            start = await store.put("k/a", b"1", lease=lease.id)
        watching = asyncio.ensure_future(anext(store.watch("k/", start)))
        await asyncio.sleep(0.2)
        await run(etcd.forget)
        with pytest.raises(Compacted, match="list again"):
            await asyncio.wait_for(watching, 60)
        assert (await again(lambda: store.list("")))[0] == []
        with pytest.raises(LeaseLost):
            await again(lambda: store.keep_alive(lease))


async def test_an_etcd_that_was_put_back_behind_what_a_watch_has_given_is_not_watched_on(
    etcd: EtcdProcess,
) -> None:
    async with opened(etcd) as store:
        start = await store.put("k/a", b"0")
        copy = await asyncio.to_thread(etcd.save)
        async with contextlib.aclosing(store.watch("k/", start)) as changes:
            watching = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.2)  # its stream has begun, at the revision of the copy
            for value in (b"1", b"2", b"3"):
                await again(partial(store.put, "k/a", value))
            seen = [await watching, await anext(changes), await anext(changes)]
            assert [one.entry.value for one in seen] == [b"1", b"2", b"3"]
            watching = asyncio.ensure_future(anext(changes))
            await asyncio.to_thread(etcd.restore, copy)
            await again(partial(store.put, "k/b", b"new"))  # at a revision that it had passed
            with pytest.raises(Compacted, match="list again"):
                await asyncio.wait_for(watching, 60)


async def test_no_connection_is_kept_by_what_failed_on_it(etcd: EtcdProcess) -> None:
    gc.collect()
    gc.disable()  # which would find it, some time
    try:
        async with opened(etcd) as store:
            last = weakref.ref(store._endpoints.first)
            lease = await store.grant(60_000)
            start = await store.put("k/a", b"1")
            async with contextlib.aclosing(store.watch("k/", start)) as watching:
                change = asyncio.ensure_future(anext(watching))
                await asyncio.sleep(0.3)
                await asyncio.to_thread(etcd.kill)
                for call in (partial(store.get, "k/a"), partial(store.keep_alive, lease)):
                    with pytest.raises(Unavailable):
                        await call()
                await asyncio.to_thread(etcd.start)
                await again(partial(store.put, "k/b", b"2"))
                assert (await asyncio.wait_for(change, 60)).entry.key == "k/b"
        async with asyncio.timeout(10):
            while last() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_leases_outlive_a_restart_of_etcd(etcd: EtcdProcess) -> None:
    async with opened(etcd) as store:
        lease = await store.grant(60_000)
        await store.put("nodes/a", b"", lease=lease.id)
        await run(etcd.restart)
        await again(lambda: store.keep_alive(lease))
        assert await again(lambda: store.get("nodes/a")) is not None


async def test_of_three_members_any_may_be_gone(
    trio: list[EtcdProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ASK_SECONDS", 0.3)
    monkeypatch.setattr(stream, "ANSWER_SECONDS", 0.3)
    async with opened(*trio) as store:
        start = await store.put("k/0", b"")
        async with contextlib.aclosing(store.watch("k/", start)) as changes:
            for number, member in enumerate(trio, 1):
                (member.pause if number == 2 else member.kill)()
                # Calls that may be repeated find another member within their own deadline, once
                # the others have elected a leader; a write may have to be made again.
                await again(lambda: store.list(""))
                assert await again(lambda key=f"k/{number}": store.put(key, b""))
                async with asyncio.timeout(60):
                    while (await anext(changes)).entry.key != f"k/{number}":
                        pass
                await run(member.resume if number == 2 else member.start)
                await again(lambda: store.list(""))


async def test_a_watch_at_a_member_that_the_others_left_alone_does_not_take_silence_for_peace(
    trio: list[EtcdProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WATCH_SECONDS", 1.0)
    alone, *others = trio
    async with opened(alone) as store:
        start = await store.put("k/a", b"1")
        waiting = asyncio.ensure_future(anext(store.watch("k/", start)))
        await asyncio.sleep(0.5)
        for member in others:
            member.pause()
        with pytest.raises(Unavailable, match="watch again"):
            await asyncio.wait_for(waiting, 60)
        with pytest.raises(Unavailable):
            await store.get("k/a")  # which others may have changed
        for member in others:
            member.resume()
        assert (await again(lambda: store.get("k/a"))).revision == start


async def test_a_member_that_never_answers_costs_a_read_part_of_its_deadline_only(
    trio: list[EtcdProcess],
) -> None:
    async with opened(*trio) as store:
        await store.put("k", b"")
        for member in trio:
            member.pause()
            await again(lambda: store.list(""))  # the others elect a leader, if it was the one
            for _ in range(3):
                assert await store.get("k") is not None
            member.resume()
