"""Who follows a writer group by its name is told where nothing more of it comes, at any node."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import grpc
import pytest

from kvstore.block import Chain, Miss
from kvstore.layout import Fragment
from kvstore.node.readers import Opened
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, Rig, triples
from tests.node.test_fetch import KNOWN_SECONDS, Pair
from tests.nodes import SPEC, Caller, eventually, payload, prompt, refused
from tests.pools import pool

LEFT = Fragment(0, 2, 0, 1)
GONE_SECONDS = 30.0  # until the metadata says that a node is gone, at most


def opened(rig: Rig, blocks: Chain, tenant: str = "default", group: str = "g") -> list[str]:
    session = rig.session(tenant=tenant)
    found = rig.store.open(session, SMALL, blocks.hashes, writer_group=group)
    return ["hit" if isinstance(one, Opened) else one.value for one in found]


def test_what_a_group_has_is_followed_and_what_it_has_not_is_forgone_once_it_is_over() -> None:
    rig, blocks = Rig(), prompt(1, 2, spec=SPEC)
    rank = rig.session(mapped=True)
    rig.store.reserve(rank, SMALL, triples(blocks, 0, 1), LEFT, "g")
    assert opened(rig, blocks) == ["hit", "absent"], "it may come"
    rig.store.abort(rank, (), "g")
    assert opened(rig, blocks) == ["hit", Miss.FORGONE]
    assert opened(rig, blocks, group="another") == ["unsealed", "absent"]
    assert opened(rig, blocks, group="") == ["unsealed", "absent"]
    assert opened(rig, blocks, tenant="other") == ["absent"] * 2
    assert opened(rig, blocks, group="g") == ["hit", Miss.FORGONE]
    rig.store.reserve(rank, SMALL, triples(blocks, 1), LEFT, "g")
    assert opened(rig, blocks) == ["hit", "hit"], "it goes on after all"


def test_what_others_have_stored_is_there_though_the_group_that_is_followed_has_it_not() -> None:
    rig, blocks = Rig(), prompt(1, 2, spec=SPEC)
    rig.put(rig.session(), SMALL, blocks.between(0, 1))
    rig.store.abort(rig.session(), (), "g")
    assert opened(rig, blocks) == ["hit", Miss.FORGONE]


def test_what_another_writes_may_yet_come_though_the_group_that_is_followed_is_over() -> None:
    rig, blocks = Rig(), prompt(1, 3, spec=SPEC)
    other = rig.session(mapped=True)
    rig.store.reserve(other, SMALL, triples(blocks, 0, 1), SMALL.layout.whole)
    rig.put(rig.session(), SMALL, blocks, 1, 2)
    rig.store.abort(rig.session(), (), "g")
    assert opened(rig, blocks) == ["unsealed", "unlisted", Miss.FORGONE]
    rig.store.end(other)
    assert opened(rig, blocks)[0] == Miss.FORGONE


def test_what_is_stored_behind_a_hole_that_nobody_fills_is_forgone_too() -> None:
    rig, blocks = Rig(), prompt(1, 4, spec=SPEC)
    rig.put(rig.session(), SMALL, blocks, 1, 4)
    assert opened(rig, blocks.between(2, 4)) == ["unlisted"] * 2
    rig.store.abort(rig.session(), (), "g")
    for first in range(4):
        assert opened(rig, blocks.between(first, 4)) == [Miss.FORGONE] * (4 - first)
    other = rig.session(mapped=True)
    rig.store.reserve(other, SMALL, triples(blocks, 0, 1), SMALL.layout.whole)
    for first in range(1, 4):
        assert opened(rig, blocks.between(first, 4)) == ["unlisted"] * (4 - first)


def test_blocks_that_stand_before_one_another_in_a_circle_are_forgone() -> None:
    rig, blocks = Rig(), prompt(1, 2, spec=SPEC)
    first, second = blocks.hashes
    writer = rig.session(mapped=True)
    for one, parent in ((first, second), (second, first)):
        [window] = rig.store.reserve(writer, SMALL, [(one, parent, 4)], SMALL.layout.whole)
        assert window is not None
        rig.write(window.slot, SMALL)
        rig.store.seal(writer, [window.handle])
    assert opened(rig, blocks) == ["unlisted"] * 2
    rig.store.abort(writer, (), "g")
    assert opened(rig, blocks) == [Miss.FORGONE] * 2


def test_a_process_that_goes_after_its_session_ends_its_group_no_second_time() -> None:
    rig, blocks = Rig(), prompt(1, 2, spec=SPEC)
    lost, anew = rig.session(mapped=True), rig.session(mapped=True)
    rig.store.reserve(lost, SMALL, triples(blocks, 0, 1), LEFT, "g")
    rig.store.end(lost)
    assert opened(rig, blocks) == [Miss.FORGONE] * 2
    rig.store.reserve(anew, SMALL, triples(blocks, 0, 1), LEFT, "g")
    rig.process_gone(lost)
    assert opened(rig, blocks) == ["hit", "absent"]


def test_a_group_one_of_whose_members_is_gone_while_it_writes_is_over() -> None:
    rig, blocks = Rig(), prompt(1, 2, spec=SPEC)
    rank, single = rig.session(mapped=True), rig.session(mapped=True)
    rig.store.reserve(rank, SMALL, triples(blocks, 0, 1), LEFT, "g")
    rig.store.reserve(single, SMALL, triples(blocks, 1), SMALL.layout.whole)
    for session in (single, rank):
        rig.store.end(session)
    assert opened(rig, blocks) == [Miss.FORGONE] * 2
    assert opened(rig, blocks, group="") == ["absent"] * 2
    rig.store.check()


def test_a_namespace_that_gave_wrong_kv_says_so_to_followers_too() -> None:
    rig, blocks = Rig(), prompt(1, spec=SPEC)
    rig.store.abort(rig.session(), (), "g")
    rig.store.quarantined = {SMALL.owner[0]}
    assert opened(rig, blocks) == [Miss.QUARANTINED]


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with pool() as nodes:
        yield Pair(nodes, nodes.node("a"), nodes.node("b"))


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    yield shared
    shared.at_rest()


class Followed:
    """Some blocks that a group at node a is to write, of which it has reserved one."""

    def __init__(self, pair: Pair, group: str, blocks: int = 2) -> None:
        self.pair, self.group = pair, group
        self.blocks, self.writer = pair.new(blocks), pair.a.caller()
        first = self.blocks.between(0, 1)
        self.handles = self.writer.reserve(first, writer_group=group).handles

    def seen(self, reader: Caller, *, group: str | None = None) -> list[int]:
        """What a reader is told: at node b, which asks node a."""
        about = reader.about(self.blocks) | {"writer_group": group or self.group}
        reply = reader.ask("Open", **about, writer_node=self.pair.at_a.opened.node_id)
        if held := [handle for handle in reply.handles if handle]:
            reader.ask("Close", handles=held)
        return list(reply.outcomes)

    def becomes(self, outcomes: list[int]) -> None:
        eventually(lambda: self.seen(self.pair.at_b) == outcomes, KNOWN_SECONDS)


def test_a_reader_at_another_node_hears_it_of_its_own(pair: Pair) -> None:
    followed, other = Followed(pair, "over", 3), Followed(pair, "goes on", 3)
    followed.becomes([pb.HIT, pb.ABSENT, pb.ABSENT])
    pair.a.caller().ask("Abort", writer_group="over")  # whoever of the group's tenant says it
    followed.becomes([pb.HIT, pb.FORGONE, pb.FORGONE])
    other.becomes([pb.HIT, pb.ABSENT, pb.ABSENT])
    more = followed.writer.reserve(followed.blocks.between(1, 2), writer_group="over").handles
    followed.becomes([pb.HIT, pb.HIT, pb.ABSENT])
    for one, handles in ((followed, [*followed.handles, *more]), (other, other.handles)):
        one.writer.ask("Abort", handles=handles)


def test_what_a_dead_prefill_engine_has_not_written_is_forgone_at_all_nodes(pair: Pair) -> None:
    followed = Followed(pair, "dies")
    followed.becomes([pb.HIT, pb.ABSENT])
    followed.writer.stream.cancel()
    followed.becomes([pb.FORGONE, pb.FORGONE])


def test_what_was_to_be_written_at_a_node_that_is_gone_is_forgone() -> None:
    with pool() as nodes:
        pair = Pair(nodes, nodes.node("a"), nodes.node("b"))
        written = Followed(pair, "dies with its node")
        written.becomes([pb.HIT, pb.ABSENT])
        name, reader = written.pair.at_a.opened.node_id, written.pair.at_b
        pair.a.kill()

        def outcomes(group: str, node: str = name) -> list[int]:
            about = reader.about(written.blocks) | {"writer_group": group, "writer_node": node}
            return [*reader.ask("Open", **about).outcomes]

        eventually(lambda: outcomes("had begun") == [pb.FORGONE] * 2, GONE_SECONDS)
        assert outcomes("dies with its node") == [pb.FORGONE] * 2
        assert outcomes("may come", "never seen") == [pb.ABSENT] * 2


def test_what_is_sealed_before_its_group_is_over_is_had_by_its_key(pair: Pair) -> None:
    followed = Followed(pair, "seals")
    followed.writer.write(followed.handles[0], payload(followed.blocks.hashes[0]))
    followed.writer.ask("Seal", handles=followed.handles)
    followed.writer.ask("Abort", writer_group="seals")
    followed.becomes([pb.HIT, pb.FORGONE])


def test_an_abort_names_handles_or_a_group_and_a_group_by_a_name(pair: Pair) -> None:
    for given in ({}, {"writer_group": "a\0b"}, {"writer_group": "x" * 2_000}):
        said = refused(functools.partial(pair.at_a.ask, "Abort", **given))
        assert (said.kind, said.code) == ("Invalid", grpc.StatusCode.INVALID_ARGUMENT)
