"""What a watch remembers of its streams, fed with replies as etcd cuts them."""

from __future__ import annotations

from typing import Any

from aetcd.rpc import kv_pb2
from aetcd.rpc import rpc_pb2 as pb

from kvstore.metadata.etcd.position import Position


def reply(*changed: tuple[int, str], more: bool = False, **fields: Any) -> pb.WatchResponse:
    events = [
        kv_pb2.Event(kv=kv_pb2.KeyValue(key=key.encode(), mod_revision=at)) for at, key in changed
    ]
    return pb.WatchResponse(events=events, fragment=more, **fields)


def up_to(revision: int, **fields: Any) -> pb.WatchResponse:
    return pb.WatchResponse(header=pb.ResponseHeader(revision=revision), **fields)


def given(position: Position, response: pb.WatchResponse) -> list[tuple[int, str]]:
    return [(one.kv.mod_revision, one.kv.key.decode()) for one in position.take(response)]


def test_what_was_asked_for_one_revision_early_is_not_given() -> None:
    position = Position(5)
    assert given(position, reply((5, "a"), (6, "b"))) == [(6, "b")]
    assert position.revision == 6


def test_a_stream_that_begins_anew_repeats_nothing() -> None:
    position = Position(0)
    assert given(position, reply((1, "a"), (2, "b"))) == [(1, "a"), (2, "b")]
    assert given(position, reply((2, "b"), (3, "c"))) == [(3, "c")]


def test_a_revision_cut_in_two_is_asked_for_again_and_gives_only_its_rest() -> None:
    position = Position(3)
    assert given(position, reply((4, "x"), (5, "a"), (5, "b"), more=True)) == [
        (4, "x"),
        (5, "a"),
        (5, "b"),
    ]
    assert position.revision == 4, "of 5 some may be missing"
    assert given(position, reply((4, "x"), (5, "a"), (5, "b"), (5, "c"), (6, "a"))) == [
        (5, "c"),
        (6, "a"),
    ]
    assert position.revision == 6


def test_the_rest_of_a_revision_cut_in_two_completes_it() -> None:
    position = Position(3)
    given(position, reply((4, "a"), more=True))
    assert given(position, reply((4, "b"))) == [(4, "b")]
    assert position.revision == 4


def test_being_told_that_it_is_up_to_date_moves_a_watch_along() -> None:
    position = Position(3)
    assert given(position, up_to(90)) == []
    assert position.revision == 90
    assert given(position, reply((90, "a"), (91, "a"))) == [(91, "a")]


def test_an_answer_about_the_whole_stream_moves_no_watch() -> None:
    position = Position(3)
    given(position, reply((4, "a"), more=True))
    assert given(position, up_to(90, watch_id=-1)) == []
    assert position.revision == 3
    assert given(position, reply((4, "b"), (80, "a"))) == [(4, "b"), (80, "a")]


def test_the_first_reply_of_a_stream_moves_no_watch() -> None:
    position = Position(3)
    given(position, up_to(90, created=True))
    assert position.revision == 3
