"""Events come in order and none is missing, or whoever listens is told that some are."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from kvstore.client.kv_events import subscription
from kvstore.client.kv_events.messages import Event, Messages, Removed
from kvstore.client.kv_events.subscription import Source, Subscription
from kvstore.errors import ConfigError
from tests.client.kv_events.publisher import END, Publisher
from tests.nodes import eventually

LOST = -1


class Heard:
    """What came, by a number in each event."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def take(self, events: list[Event]) -> None:
        for one in events:
            assert isinstance(one, Removed) and isinstance(one.hashes[0], int)
            self.numbers.append(one.hashes[0])

    def lost(self) -> None:
        self.numbers.append(LOST)


def event(number: int) -> list[object]:
    return ["BlockRemoved", [number]]


@pytest.fixture(params=[True, False], ids=["named", "as of old"])
def publisher(request: pytest.FixtureRequest) -> Iterator[Publisher]:
    with Publisher(named=request.param) as made:
        yield made


@contextmanager
def listening(publisher: Publisher, *, replays: bool = True) -> Iterator[Heard]:
    heard = Heard()
    source = Source(publisher.endpoint, publisher.replay if replays else "")
    with closing(Subscription(source, Messages(), heard.take, heard.lost)):
        publisher.wait_heard()
        if replays:
            publisher.answer(5.0)
        yield heard


def hears(publisher: Publisher, heard: Heard, numbers: list[int]) -> None:
    def all_came() -> bool:
        publisher.answer()
        return heard.numbers == numbers

    eventually(all_came)


def test_batches_are_taken_in_order_from_before_anybody_listened(publisher: Publisher) -> None:
    for number in range(3):
        publisher.publish(event(number), event(10 + number))
    with listening(publisher) as heard:
        hears(publisher, heard, [0, 10, 1, 11, 2, 12])
        publisher.publish(event(3))
        hears(publisher, heard, [0, 10, 1, 11, 2, 12, 3])
    assert publisher.asked == [0]


def test_what_did_not_come_is_asked_for_again_and_taken_once(publisher: Publisher) -> None:
    with listening(publisher) as heard:
        for number in range(6):
            publisher.publish(event(number), lost=number in (1, 2, 3))
        hears(publisher, heard, [0, 1, 2, 3, 4, 5])
    assert publisher.asked == [0, 1]


def test_what_the_engine_has_no_more_is_lost_and_what_it_has_is_taken(
    publisher: Publisher,
) -> None:
    with listening(publisher) as heard:
        for number in range(5):
            publisher.publish(event(number), lost=number in (1, 2, 3))
            if number == 2:
                publisher.kept.clear()
        hears(publisher, heard, [0, LOST, 3, 4])


@pytest.mark.parametrize("no_room", [{3, 4, 7}, {4, 5, 6, 7, END}])
def test_what_a_long_answer_had_no_room_for_is_asked_for_once_more(
    publisher: Publisher, no_room: set[int]
) -> None:
    for number in range(8):
        publisher.publish(event(number))
    publisher.no_room = set(no_room)
    with listening(publisher) as heard:
        hears(publisher, heard, [*range(8)])
        publisher.publish(event(8))
        hears(publisher, heard, [*range(9)])
    assert publisher.asked == [0, min(no_room - {END})]


def test_an_answer_may_take_long_as_long_as_batches_come(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "REPLAY_SECONDS", 4.0)
    monkeypatch.setattr(subscription, "PAUSE_SECONDS", 30.0)
    publisher.pause_seconds = 0.5
    for number in range(10):
        publisher.publish(event(number))
    with listening(publisher) as heard:
        hears(publisher, heard, [*range(10)])
        publisher.publish(event(10))
        hears(publisher, heard, [*range(11)])
    assert publisher.asked == [0], "it took one answer"


def test_a_batch_that_the_engine_never_sent_is_lost_and_those_behind_it_are_taken(
    publisher: Publisher,
) -> None:
    for number in range(6):
        publisher.publish(event(number))
    del publisher.kept[3]
    with listening(publisher) as heard:
        hears(publisher, heard, [0, 1, 2, LOST, 4, 5])
    assert publisher.asked == [0, 3]


def test_without_a_place_to_ask_at_a_gap_is_a_loss(publisher: Publisher) -> None:
    with listening(publisher, replays=False) as heard:
        for number in range(4):
            publisher.publish(event(number), lost=number == 1)
        hears(publisher, heard, [0, LOST, 2, 3])


def test_an_engine_that_does_not_answer_costs_a_loss_and_no_more(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "REPLAY_SECONDS", 0.2)
    with listening(publisher) as heard:
        publisher.publish(event(0), lost=True)
        publisher.publish(event(1))
        eventually(lambda: heard.numbers == [LOST, 1])


def test_an_engine_that_begins_anew_is_another(publisher: Publisher) -> None:
    with listening(publisher) as heard:
        publisher.publish(event(0))
        publisher.publish(event(1))
        hears(publisher, heard, [0, 1])
        endpoint, replay = publisher.endpoint, publisher.replay
        publisher.close()
        with Publisher(endpoint, replay) as again:
            again.publish(event(50), lost=True)

            def known() -> bool:
                again.publish(event(60))
                again.answer(0.1)
                return heard.numbers[2:5] == [LOST, 50, 60]

            eventually(known)


@pytest.mark.parametrize("payload", [b"", b"not msgpack", b"\x80", bytes(17 << 20)])
def test_what_is_no_batch_or_too_much_is_a_loss_and_the_next_is_taken(
    publisher: Publisher, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "REPLAY_SECONDS", 0.5)
    with listening(publisher, replays=False) as heard:
        publisher.send(payload)

        def goes_on() -> bool:
            publisher.publish(event(7))
            return LOST in heard.numbers and heard.numbers[-1] == 7

        eventually(goes_on)


def test_one_that_only_hangs_up_is_tried_ever_more_seldom_and_nothing_is_lost_by_it() -> None:
    heard, times = Heard(), list[float]()
    server = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        for _ in range(4):
            server.accept()[0].close()
            times.append(time.monotonic())

    thread = threading.Thread(target=hang_up)
    thread.start()
    source = Source(f"tcp://127.0.0.1:{server.getsockname()[1]}")
    with server, closing(Subscription(source, Messages(), heard.take, heard.lost)):
        thread.join(20.0)
    assert not heard.numbers
    assert times[3] - times[0] > 0.3, "0.7 s, or ZeroMQ itself tried once more"


@pytest.mark.parametrize("source", [Source("tcp://h"), Source("ipc:///tmp/x", "tcp://h")])
def test_one_that_cannot_listen_says_why_and_nobody_waits_for_it(source: Source) -> None:
    heard = Heard()
    with closing(Subscription(source, Messages(), heard.take, heard.lost)) as ended:
        assert ended.caught_up.wait(5.0)
        assert ended.error is not None and "Invalid argument" in str(ended.error)
    assert heard.numbers == [LOST]


def test_what_is_to_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zmq", "msgspec"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, name, None)
            with pytest.raises(ConfigError, match=r"pip install 'moonpool\[events\]'"):
                heard = Heard()
                Subscription(Source("tcp://127.0.0.1:1"), Messages(), heard.take, heard.lost)
