"""Servers that publish and count are watched over real sockets, and reported on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict

import pytest

from kvstore.attach import watch as watches
from kvstore.attach.answer import answer
from kvstore.attach.compared import Before, Brought, Compared
from kvstore.attach.kinds import SGLANG, VLLM, Kind
from kvstore.attach.pool import Size
from kvstore.attach.prefill import PrefillTimes
from kvstore.attach.reasons import Reasons
from kvstore.attach.watch import Engine, Watch
from kvstore.client.kv_events.subscription import Source
from kvstore.core.cost import TransferCost
from kvstore.errors import Unavailable
from tests.attach.pages import Pages, page
from tests.client.kv_events.publisher import Publisher
from tests.nodes import eventually

BLOCK = 64
LINK = TransferCost(0.0, 1e9)
SIZE = Size(1 << 20, 0, 100)


class Server:
    """One that publishes and counts."""

    def __init__(self, pages: Pages, publisher: Publisher, kind: Kind = VLLM) -> None:
        self.pages, self.publisher, self.kind = pages, publisher, kind
        self.counts = dict.fromkeys(kind.counters, 0.0)
        self.serve(0, 0)

    def engine(self, *, replays: bool) -> Engine:
        replay = self.publisher.replay if replays else ""
        return Engine(self.pages.url, Source(self.publisher.endpoint, replay))

    def serve(self, tokens: int, first: int, *, lost: bool = False) -> None:
        """A prompt of so many tokens, of which it has none, that begins with this one."""
        for name, more in (
            *(("queries", tokens), ("prefilled", tokens)),
            *(("prompts", 1), ("generated", 1), ("prefills", 1)),
            *(("prefill_seconds", tokens / 100), ("first_token_seconds", tokens / 100)),
        ):
            self.counts[name] += more if tokens else 0
        self.pages.body = page(self.kind, **self.counts).replace('{engine="0"} 2.0', " 0")
        if count := tokens // BLOCK:
            whole = list(range(first, first + count * BLOCK))
            names = [hash(tuple(whole[: BLOCK * (one + 1)])) for one in range(count)]
            stored = ["BlockStored", names, None, whole, BLOCK, None, "GPU", None]
            self.publisher.publish(stored, lost=lost)


@contextmanager
def served(count: int, *kinds: Kind) -> Iterator[list[Server]]:
    publishers, pages = [Publisher() for _ in range(count)], [Pages() for _ in range(count)]
    try:
        every = zip(pages, publishers, kinds or count * (VLLM,), strict=True)
        yield [Server(*one) for one in every]
    finally:
        for publisher in publishers:
            publisher.close()
        for one in pages:
            one.__exit__()


@contextmanager
def watching(servers: list[Server], *, replays: bool = False) -> Iterator[Watch]:
    made = Watch([one.engine(replays=replays) for one in servers])
    try:
        with ThreadPoolExecutor(1) as beside:
            started = beside.submit(made.start)
            for one in servers:
                one.publisher.wait_heard()
                if replays:
                    one.publisher.answer(5.0)
            started.result()
        yield made
    finally:
        made.stop()


def wait_told(watch: Watch, engine: int, blocks: int = 1) -> None:
    """Until so many that it stored are known of: that comes beside what a test does."""
    eventually(lambda: watch.fleet.seen[engine].prompts.total() >= blocks)


def test_what_one_server_computed_and_another_computes_is_told_and_a_pool_would_have_had_it() -> (
    None
):
    with served(2) as servers:
        with watching(servers) as watch:
            servers[0].serve(200, 1_000)
            wait_told(watch, 0)
            watch.look(0.5, lambda: None)
            servers[1].serve(200, 1_000)
            wait_told(watch, 1)
            watch.look(1.0, lambda: None)
        report = answer(watch, None, SIZE, LINK)
    assert report.reasons == Reasons(never=192, elsewhere=192, short=16)
    assert report.asked.missed == 400 and report.block_tokens == BLOCK
    assert report.gain is not None and report.gain.tokens == 192
    assert report.gain.prefill_seconds == pytest.approx(1.92)
    said = str(report)
    assert "another server has it" in said and "192   48.0%  more, of 1 prompts" in said
    assert report.as_json["pool"]["tokens"] == 192
    assert report.as_json["reasons"] == asdict(report.reasons)


def test_tokens_that_save_no_second_are_told_with_the_reason() -> None:
    with served(2) as servers:
        with watching(servers) as watch:
            for one in servers:
                one.serve(200, 1_000)
                wait_told(watch, servers.index(one))
                watch.look(0.5, lambda: None)
        slow = answer(watch, None, SIZE, TransferCost(100.0, 1e9))
        good = answer(watch, None, SIZE, LINK)
        watch.prefill = PrefillTimes(2)
        untold = answer(watch, None, SIZE, LINK)
    for report in (slow, untold):
        assert report.gain is not None and report.gain.tokens == 192
        assert report.gain.prefill_seconds == 0.0
    assert any("over this link no prompt's blocks come sooner" in one for one in slow.notes)
    assert any("told of no prefill's seconds" in one for one in untold.notes)
    assert not any("sooner" in one or "no prefill" in one for one in good.notes)


def test_servers_of_both_kinds_are_one_fleet_and_share_no_pool() -> None:
    with served(3, VLLM, SGLANG, SGLANG) as servers:
        with watching(servers) as watch:
            for one in servers:
                one.serve(200, 1_000)
                wait_told(watch, servers.index(one))
            # One more that SGLang computed though it was there tells of nothing.
            servers[1].serve(128, 1_000, lost=True)
        report = answer(watch, None, SIZE, LINK)
    assert [one.reasons for one in report.servers] == [
        Reasons(never=192, short=8),
        Reasons(elsewhere=192, here=10, short=126),
        Reasons(elsewhere=192, short=8),
    ]
    assert report.gain is not None and report.gain.tokens == 192, "what SGLang's other server has"


def test_what_a_pool_brought_is_told_beside_what_was_predicted() -> None:
    before = Before(800, 4, 8.0, 8.0, Brought(300, 3.0, 2.0))
    with served(1) as servers:
        with watching(servers) as watch:
            servers[0].serve(400, 1_000)
            servers[0].counts["pool_hits"] += 128
            servers[0].serve(0, 0)
            watch.look(0.5, lambda: None)
        report = answer(watch, None, None, LINK, before)
    assert report.compared == Compared(Brought(150, 1.5, 0.5), Brought(128, 0.0, 2.0 - 4.0))
    assert report.as_json["compared"]["realised"]["tokens"] == 128
    said = str(report)
    assert "128  tokens found in it; predicted 150" in said
    assert "0.000  GPU-seconds of prefill not spent; predicted 1.500" in said
    assert "-2.000  seconds that a first token came earlier on average; predicted 0.500" in said


def test_what_was_before_is_known_and_does_not_count() -> None:
    with served(1) as servers:
        servers[0].serve(128, 1_000)
        with watching(servers, replays=True) as watch:
            servers[0].serve(128, 1_000)
            wait_told(watch, 0)
            watch.look(0.5, lambda: None)
        report = answer(watch, None, None, LINK)
    assert report.asked.queries == 128
    assert report.reasons == Reasons(here=128)
    assert not report.notes


def test_what_is_said_again_where_the_connection_broke_counts_once() -> None:
    with served(1) as (server,):
        server.serve(128, 50_000)
        with watching([server], replays=True) as watch:
            server.serve(192, 1_000)
            wait_told(watch, 0, 3)
            server.publisher.hang_up()
            server.serve(64, 1_000, lost=True)
            server.publisher.answer(10.0)
            wait_told(watch, 0, 4)
            watch.look(0.5, lambda: None)
        report = answer(watch, None, SIZE, LINK)
    assert report.asked.queries == 256
    assert report.reasons == Reasons(never=192, here=64)
    assert report.gain is not None and report.gain.tokens == 0


def test_what_is_passed_over_counts_once_though_it_is_said_again() -> None:
    with served(1) as (server,):
        server.publisher.publish(["Odd"])
        with watching([server], replays=True) as watch:
            server.publisher.publish(["Odd"])
            server.serve(64, 1_000)
            wait_told(watch, 0)
            server.publisher.hang_up()
            server.serve(64, 2_000, lost=True)
            server.publisher.answer(10.0)
            wait_told(watch, 0, 2)
    assert watch.passed_over == {"unknown": 1} and watch.fleet.seen[0].unread == 1


def test_lengths_count_where_they_are_of_these_prompts() -> None:
    with served(1) as servers:
        with watching(servers) as watch:
            servers[0].serve(200, 1_000)
            wait_told(watch, 0)
            watch.look(0.5, lambda: None)
        good, wrong = (answer(watch, [one], None, LINK) for one in (200, 201))
    assert good.exact and not good.notes and not wrong.exact
    assert "of other requests" in wrong.notes[0]
    assert good.reasons == wrong.reasons == Reasons(never=192, short=8)


def test_events_that_are_lost_are_said_to_be() -> None:
    with served(1) as servers:
        with watching(servers) as watch:
            servers[0].serve(128, 1_000)
            servers[0].serve(128, 2_000, lost=True)
            servers[0].serve(128, 1_000)
            wait_told(watch, 0, 2 * 128 // BLOCK)
            watch.look(0.5, lambda: None)
        report = answer(watch, None, None, LINK)
    assert report.reasons.all == report.asked.missed == 384
    assert report.reasons.never == 128 and report.reasons.evicted == 128
    assert any("events were lost 1 times" in note for note in report.notes)


def test_a_server_that_falls_silent_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SCRAPE_SECONDS", 0.1)
    with served(1) as servers:
        with watching(servers) as watch:
            servers[0].pages.status = 500
            ends = itertools.count(0.3, 0.3)
            eventually(lambda: watch.look(next(ends), lambda: None) or watch.failed)
            servers[0].pages.status = 200
            servers[0].serve(100, 1_000)
        report = answer(watch, None, None, LINK)
    assert report.asked.queries == 100
    assert any("did not answer" in note for note in report.notes)


def test_one_that_is_not_there_at_the_start_is_an_error() -> None:
    with served(1) as servers:
        servers[0].pages.status = 404
        watch = Watch([servers[0].engine(replays=False)])
        with pytest.raises(Unavailable, match="answers 404; SGLang has it with --enable-metrics"):
            watch.start()
        watch.stop()


def test_one_whose_events_cannot_be_heard_is_an_error_and_not_a_fleet_that_tells_nothing() -> None:
    with served(1) as (server,):
        watch = Watch([Engine(server.pages.url, Source("tcp://h"))])
        with pytest.raises(Unavailable, match="tcp://h cannot be heard: Invalid argument"):
            watch.start()
        watch.stop()
