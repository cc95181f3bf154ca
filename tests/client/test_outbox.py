from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.client import outbox
from kvstore.client.outbox import HASHED_MAX, MESSAGES_MAX, Outbox
from kvstore.conductor.reports import _check as check
from kvstore.core.fit import TOKENS_MAX
from kvstore.limits import (
    ENGINE_ADAPTERS_MAX,
    HASH_BYTES,
    LABEL_BYTES_MAX,
    REPORT_BLOCKS_MAX,
    REPORT_MEASURED_MAX,
    REPORT_REQUESTS_MAX,
    REQUEST_ID_BYTES_MAX,
    RPC_KEYS_MAX,
    RPC_MESSAGE_BYTES_MAX,
)
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import engine

LATER = {"accepted": 0, "began": 1, "ended": 2, "decoding": 3, "given_up": 4}


def opened() -> tuple[Outbox, int]:
    box = Outbox(engine("one"))
    return box, box.begin()


def emptied(box: Outbox, stream: int) -> list[pb.ReportRequest]:
    """All messages that wait."""
    found = []
    while (message := box.next(stream, 0.0)) is not None and message.ByteSize():
        found.append(message)
    return found


def events(message: pb.ReportRequest) -> list[tuple[str, str]]:
    """What a message says happened, in the order in which it counts."""
    said = [("accepted", one.request_id) for one in message.accepted]
    return said + [(what, one) for what in [*LATER][1:] for one in getattr(message, what)]


def adapters_of(messages: list[pb.ReportRequest]) -> list[tuple[str, bytes]]:
    for one in messages:
        check(one, 4)
    return [(one.name, one.weights[:1]) for message in messages for one in message.adapters]


def test_adapters_are_said_as_they_are_loaded_and_all_of_them_as_a_stream_begins() -> None:
    box, stream = opened()
    emptied(box, stream)
    for name, weights in (("a", b"1"), ("b", b""), ("a", b"1"), ("a", b"2")):
        box.adapter(name, weights * 32)
    assert adapters_of(emptied(box, stream)) == [("a", b"1"), ("b", b""), ("a", b"2")]
    stream = box.begin()
    assert adapters_of(emptied(box, stream)) == [("b", b""), ("a", b"2")]


def test_of_too_many_adapters_the_last_are_remembered_and_those_without_a_name_left_out() -> None:
    box = Outbox(engine("one"))
    for odd in ("", "a\nb", "x" * (LABEL_BYTES_MAX + 1), "\ud800"):
        box.adapter(odd, b"1" * 32)
    longest = [f"{number:0{LABEL_BYTES_MAX}}" for number in range(ENGINE_ADAPTERS_MAX + 2)]
    for name in longest:
        box.adapter(name, b"1" * 32)
    messages = emptied(box, box.begin())
    assert [name for name, _ in adapters_of(messages)] == longest[2:]
    assert max(one.ByteSize() for one in messages) < RPC_MESSAGE_BYTES_MAX


def test_a_stream_begins_with_who_the_engine_is_and_what_is_there() -> None:
    box = Outbox(engine("one"))
    box.accept("waits", 10, 0, [b"h" * HASH_BYTES])
    box.accept("runs", 20, 5, [])
    box.became("began", "runs")
    box.accept("over", 30, 0, [])
    box.became("ended", "over")
    box.load(3, 400)
    first, *more = emptied(box, box.begin())
    assert not more
    assert first.engine.engine_id == "one" and first.load.batch == 3
    assert events(first) == [("accepted", "waits"), ("accepted", "runs"), ("began", "runs")]
    assert first.accepted[0].hashes and first.accepted[1].prefix_tokens == 5


def test_what_requests_came_to_is_summed_up_within_a_message() -> None:
    box, stream = opened()
    emptied(box, stream)
    for tokens in (3, 40):
        box.over(tokens)
    (message,) = emptied(box, stream)
    assert (message.over.sequences, message.over.output_tokens) == (2, 43)
    box.end()
    box.over(7)
    assert not any(one.over.sequences for one in emptied(box, box.begin()))


def test_nothing_piles_up_while_no_stream_is_open() -> None:
    box = Outbox(engine("one"))
    for number in range(10_000):
        box.accept(f"{number}", 10, 0, [])
        box.became("ended", f"{number}")
    messages = emptied(box, box.begin())
    assert [events(one) for one in messages] == [[]]


def test_an_engine_to_which_nothing_happens_says_that_it_is_there() -> None:
    box, stream = opened()
    emptied(box, stream)
    message = box.next(stream, 0.01)
    assert message is not None and not message.ByteSize()


def test_a_stream_that_is_over_or_is_not_the_last_gets_nothing_more() -> None:
    box, first = opened()
    second = box.begin()
    assert box.next(first, 0.0) is None
    assert box.next(second, 0.0) is not None
    box.end()
    assert box.next(second, 0.0) is None


def test_a_stream_that_is_not_emptied_is_over_and_the_next_one_is_told_what_is_there() -> None:
    box, stream = opened()
    for _ in range(MESSAGES_MAX + 1):
        box.accept("same", 10, 0, [])
        box.became("given_up", "same")
    box.accept("last", 10, 0, [])
    assert box.next(stream, 0.0) is None
    assert [events(one) for one in emptied(box, box.begin())] == [[("accepted", "last")]]


@given(
    st.lists(st.tuples(st.sampled_from([*LATER]), st.integers(0, 3)), max_size=60),
    st.integers(1, 7),
)
def test_what_happens_is_told_in_its_order_and_all_of_it(
    said: list[tuple[str, int]], every: int
) -> None:
    """However often the box is emptied in between."""
    box, stream = opened()
    told: list[tuple[str, str]] = []
    for number, (what, request) in enumerate(said):
        if what == "accepted":
            box.accept(str(request), 10, 0, [])
        else:
            box.became(what, str(request))
        if number % every == 0:
            told += [one for message in emptied(box, stream) for one in events(message)]
    told += [one for message in emptied(box, stream) for one in events(message)]
    for request in "0123":
        mine = [(what, str(one)) for what, one in said if str(one) == request]
        assert [one for one in told if one[1] == request] == mine


def test_every_message_is_one_that_a_conductor_takes() -> None:
    box, stream = opened()
    for number in range(2 * REPORT_REQUESTS_MAX):
        box.accept(f"{number}", 10_000, 0, [bytes(HASH_BYTES)] * 3)
        box.became("began", f"{number}")
    box.accept("long", 1 << 20, 1 << 20, [bytes(HASH_BYTES)] * (2 * RPC_KEYS_MAX))
    for _ in range(2 * REPORT_MEASURED_MAX):
        box.prefilled(10, 0, 0.1)
        box.stepped(2, 100, 0.01)
    messages = emptied(box, stream)
    for message in messages:
        check(message, 4)
    assert sum(len(one.began) for one in messages) == 2 * REPORT_REQUESTS_MAX
    assert sum(len(one.accepted) for one in messages) == 2 * REPORT_REQUESTS_MAX + 1


def test_no_message_is_larger_than_one_may_be_however_long_ids_are() -> None:
    box, ids = Outbox(engine("one")), [f"{i:0{REQUEST_ID_BYTES_MAX}}" for i in range(10_000)]
    for one in ids:
        box.accept(one, TOKENS_MAX, TOKENS_MAX, [bytes(HASH_BYTES)] * 4)
        box.became("began", one)
    box.own([], [i.to_bytes(HASH_BYTES, "big") for i in range(2 * REPORT_BLOCKS_MAX)])
    stream = box.begin()
    for one in ids[:REPORT_REQUESTS_MAX]:
        for what in (*LATER,)[2:]:
            box.became(what, one)
    assert max(one.ByteSize() for one in emptied(box, stream)) < RPC_MESSAGE_BYTES_MAX


def test_an_engine_with_more_long_prompts_than_messages_begins_a_stream_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "RPC_KEYS_MAX", 3)
    box, ids = Outbox(engine("one")), [str(number) for number in range(2 * MESSAGES_MAX)]
    for one in ids[:-1]:
        box.accept(one, 100, 0, [bytes(HASH_BYTES)] * 2)
    stream = box.begin()
    box.accept(ids[-1], 100, 0, [bytes(HASH_BYTES)] * 2)
    accepted = [one for message in emptied(box, stream) for one in message.accepted]
    assert [one.request_id for one in accepted] == ids
    assert sum(bool(one.hashes) for one in accepted) == HASHED_MAX, "others count on those"
