"""Whoever follows a node has what it lists, however slowly it reads and whatever comes between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from kvstore.block import stored_key
from kvstore.clock import SimClock
from kvstore.core.carried import Carried, Ledger
from kvstore.core.fingerprints import IN_DRAM, ON_SSD, fingerprints
from kvstore.core.listing import Listing
from kvstore.limits import FOLLOW_ENTRIES_MAX, FOLLOWERS_MAX, MiB
from kvstore.node import directory
from kvstore.node.directory import CHANGES_MAX, DirectoryService
from kvstore.wire.prints import unpacked
from kvstore.wire.v1 import directory_pb2 as pb
from kvstore.wire.v1 import directory_pb2_grpc
from tests.nodes import CALL_SECONDS, SPEC, NodeProcess, eventually, prompt, refused

EPOCH = 3


class Replica:
    """What somebody makes of the messages, and takes care that they are as promised."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self._coming: dict[int, int] | None = None  # of a snapshot that is on its way
        self.sequence, self.heard = 0, list[str]()
        self.carried: list[Carried] = []
        self.largest = 0

    def take(self, reply: pb.FollowReply) -> None:
        kind = reply.WhichOneof("part")
        self.heard.append(kind)
        self.largest = max(self.largest, reply.ByteSize())
        for one in reply.carried:
            self.carried.append(Carried(one.bytes, one.seconds, one.of_ssd, one.source))
        if kind == "begin":
            assert (reply.begin.node_id, reply.begin.epoch) == ("n", EPOCH)
            self.sequence = reply.begin.sequence
            self._coming = {} if reply.begin.snapshot else None
        elif kind == "snapshot":
            prints, tiers = unpacked(reply.snapshot)
            assert self._coming is not None and not self._coming.keys() & set(prints.tolist())
            self._coming |= dict(zip(prints.tolist(), tiers.tolist(), strict=True))
        else:
            prints, tiers = unpacked(reply.entries)
            assert reply.entries.sequence == self.sequence + len(prints), "a change is missing"
            if self._coming is not None:
                self.blocks, self._coming = self._coming, None
            self.sequence = reply.entries.sequence
            self.blocks |= dict(zip(prints.tolist(), tiers.tolist(), strict=True))
            self.blocks = {one: where for one, where in self.blocks.items() if where}


class Rig:
    """The service without gRPC: its messages go where the test says, when it says."""

    def __init__(self, listing: Listing) -> None:
        self.listing, self.clock, self.replica = listing, SimClock(), Replica()
        self.carried = Ledger()
        self.service = DirectoryService("n", EPOCH, listing, self.carried, self.clock)
        self.between: Callable[[], None] = lambda: None

    async def send(self, reply: pb.FollowReply) -> None:
        self.replica.take(reply)
        self.between()
        await asyncio.sleep(0)

    def follow(self, seconds: float, known: int | None = None) -> list[str]:
        """What is heard in so many seconds of the node's time."""
        self.replica.heard = []

        async def for_a_while() -> None:
            task = asyncio.create_task(self.service.follow(known, self.send))
            try:
                for _ in range(round(seconds / 0.01)):
                    await self.clock.advance(0.01)
                    for _ in range(300):
                        await asyncio.sleep(0)
                    assert not task.done(), task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(for_a_while())
        return self.replica.heard

    @property
    def truth(self) -> dict[int, int]:
        return dict(self.listing.items())


def filled(count: int, kept: int = 1_000) -> Listing:
    listing = Listing(kept)
    prints = np.random.default_rng(1).integers(0, 1 << 64, count, dtype=np.uint64)
    listing.put_all(prints, ON_SSD)
    return listing


def one(number: int) -> np.ndarray:
    return np.array([number], np.uint64)


def test_a_follower_gets_all_there_is_and_then_each_change_and_a_beat_each_second() -> None:
    rig = Rig(filled(5_000))
    heard = rig.follow(0.1)
    assert heard[0] == "begin" and set(heard[1:-1]) == {"snapshot"} and heard[-1] == "entries"
    assert rig.replica.blocks == rig.truth and len(rig.truth) == 5_000
    rig.between = lambda: rig.listing.put_all(one(7), IN_DRAM)
    known = rig.replica.sequence
    assert rig.follow(0.1, known)[:2] == ["begin", "entries"], "what it had was still known"
    rig.between = lambda: None
    rig.follow(0.1, rig.replica.sequence)
    assert rig.replica.blocks == rig.truth and rig.truth[7] == IN_DRAM
    assert rig.follow(3.5, rig.replica.sequence) == ["begin", *["entries"] * 4]


def test_changes_go_in_batches_and_no_message_is_longer_than_a_mebibyte() -> None:
    rig = Rig(filled(150_000, kept=100_000))
    heard = rig.follow(0.1)
    assert heard.count("snapshot") == 3 and rig.replica.largest < MiB
    for number in range(2 * CHANGES_MAX + 5):
        rig.listing.put_all(one(number), IN_DRAM)
    assert rig.follow(0.1, rig.replica.sequence) == ["begin", *["entries"] * 3]
    assert rig.replica.blocks == rig.truth


def test_a_page_longer_than_a_message_is_sent_in_pieces() -> None:
    crowd = Listing(10)
    crowd.put_all(np.arange(2 * FOLLOW_ENTRIES_MAX + 9, dtype=np.uint64), IN_DRAM)
    rig = Rig(crowd)
    assert rig.follow(0.1).count("snapshot") == 3
    assert rig.replica.blocks == rig.truth and rig.replica.largest < MiB


@pytest.mark.parametrize("seed", range(5))
def test_blocks_that_come_and_go_during_a_snapshot_come_right(seed: int) -> None:
    dice, rig = random.Random(seed), Rig(filled(3_000))
    known = list(rig.truth)

    def churn() -> None:
        for number in dice.choices([*known, *range(50)], k=20):
            rig.listing.put_all(one(number), dice.randrange(4))

    rig.between = churn
    rig.follow(0.2)
    rig.between = lambda: None
    rig.follow(0.2, rig.replica.sequence)
    assert rig.replica.blocks == rig.truth


def test_who_was_away_for_too_long_or_knows_what_never_was_starts_anew() -> None:
    rig = Rig(filled(100, kept=50))
    rig.follow(0.1)
    sequence = rig.replica.sequence
    for number in range(51):
        rig.listing.put_all(one(number), IN_DRAM)
    assert "snapshot" in rig.follow(0.1, sequence)
    assert "snapshot" not in rig.follow(0.1, rig.replica.sequence)
    assert "snapshot" in rig.follow(0.1, rig.replica.sequence + 1)
    assert rig.replica.blocks == rig.truth


def test_who_reads_too_slowly_gets_a_new_snapshot_and_no_queue() -> None:
    rig = Rig(filled(100, kept=50))
    rig.follow(0.1)

    def more_than_is_kept() -> None:
        rig.between = lambda: None
        for number in range(60):
            rig.listing.put_all(one(number), IN_DRAM)

    rig.between = more_than_is_kept
    heard = rig.follow(0.1, rig.replica.sequence)
    assert heard == ["begin", "begin", "snapshot", "entries"]
    assert rig.replica.blocks == rig.truth


def test_who_takes_a_snapshot_so_slowly_that_what_came_after_is_gone_gets_another() -> None:
    rig, left = Rig(filled(100, kept=50)), [2]

    def more_than_is_kept() -> None:
        if rig.replica.heard[-1] == "snapshot" and left[0]:
            left[0] -= 1
            for number in range(60):
                rig.listing.put_all(one(number), IN_DRAM)

    rig.between = more_than_is_kept
    assert rig.follow(0.1) == [*["begin", "snapshot"] * 3, "entries"]
    assert rig.replica.blocks == rig.truth


def test_a_node_that_forgets_where_a_follower_stands_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Listing, "keeps", lambda self, sequence: True)
    with pytest.raises(AssertionError):
        test_who_reads_too_slowly_gets_a_new_snapshot_and_no_queue()


# A real node

Stub = Any


@pytest.fixture
def stub(node: NodeProcess) -> Iterator[Stub]:
    with grpc.insecure_channel(node.address) as channel:
        yield directory_pb2_grpc.DirectoryStub(channel)


def test_a_real_node_names_what_was_put_and_no_more_what_was_removed(
    node: NodeProcess, stub: Stub
) -> None:
    caller = node.caller()
    caller.register()
    follow = stub.Follow(pb.FollowRequest())
    begun = next(follow).begin
    assert begun.snapshot and begun.epoch == caller.opened.epoch
    chain = prompt(1, blocks=3)
    caller.put(chain)
    seen: dict[int, int] = {}

    def hear(count: int) -> None:
        while len(seen) != count:
            prints, tiers = unpacked(next(follow).entries)
            seen.update(zip(prints.tolist(), tiers.tolist(), strict=True))
            for gone in [key for key, where in seen.items() if not where]:
                del seen[gone]

    hear(3)
    assert set(seen.values()) == {IN_DRAM}
    asked = np.array([*seen, 12345], np.uint64).tobytes()
    reply = stub.Holders(pb.HoldersRequest(fingerprints=asked), timeout=CALL_SECONDS)
    assert [(h.node_id, h.epoch, h.tiers) for h in reply.holders] == [
        (begun.node_id, begun.epoch, bytes([1, 1, 1, 0]))
    ]
    caller.ask("Remove", namespace=SPEC.digest, group=0, hashes=chain.hashes[1:])
    hear(1)
    reply = stub.Holders(pb.HoldersRequest(fingerprints=asked[-8:]), timeout=CALL_SECONDS)
    assert not reply.holders
    follow.cancel()


def test_malformed_questions_are_refused_by_name(stub: Stub) -> None:
    for raw in (b"", b"1234567", bytes(8 * 16_385)):
        said = refused(lambda raw=raw: stub.Holders(pb.HoldersRequest(fingerprints=raw)))
        assert said.kind == "Invalid" and "8 bytes each" in said.text


def test_more_followers_than_a_node_serves_are_refused_and_one_that_ends_makes_room(
    stub: Stub,
) -> None:
    streams = [stub.Follow(pb.FollowRequest()) for _ in range(FOLLOWERS_MAX)]
    assert all(next(stream).begin.snapshot for stream in streams)
    assert refused(lambda: next(stub.Follow(pb.FollowRequest()))).kind == "Overloaded"
    streams.pop().cancel()

    def served() -> bool:
        stream = stub.Follow(pb.FollowRequest())
        try:
            return next(stream).HasField("begin")
        except grpc.RpcError:
            return False
        finally:
            stream.cancel()

    eventually(served)
    for stream in streams:
        stream.cancel()


def test_keys_and_wire_agree_on_what_a_fingerprint_is() -> None:
    keys = [stored_key(b"s" * 32, SPEC.digest, 0, bytes([n]) * 32) for n in range(4)]
    prints = fingerprints(keys)
    assert prints.astype("<u8").tobytes() == b"".join(key[:8] for key in keys)


def test_a_follower_that_takes_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "FOLLOW_STALL_SECONDS", 0.05)
    seen: dict[str, Any] = {}

    class Context:
        async def write(self, _: object) -> None:
            await asyncio.Event().wait()

        def set_code(self, code: Any) -> None:
            seen["code"] = code

        def set_details(self, text: str) -> None:
            seen["text"] = text

        def set_trailing_metadata(self, _: object) -> None:
            pass

    service = DirectoryService("n", EPOCH, filled(3), Ledger(), SimClock())
    asyncio.run(service.Follow(pb.FollowRequest(), Context()))
    assert seen["code"] is grpc.StatusCode.UNAVAILABLE and "took no message" in seen["text"]
    assert service._followers == 0


def test_what_the_host_carried_is_said_with_the_next_changes_and_to_each_follower_once() -> None:
    rig = Rig(filled(5))
    rig.carried.ssd.begin(0.0)
    rig.carried.ssd.end(1.0, 10)
    rig.follow(0.1)
    assert rig.replica.carried == [], "that was before it followed"

    def carry() -> None:
        rig.between = lambda: None
        rig.carried.link.begin(1.0, "m")
        rig.carried.link.end(1.5, 100, "m")

    rig.between = carry
    rig.follow(2.5, rig.replica.sequence)
    assert rig.replica.carried == [Carried(100, 0.5, False, "m")]
