"""What one node says of itself, taken into the table message by message. Pure: no wait, no clock.

What was known of a node stays until a new snapshot of it is whole, and a stream that breaks is
taken up where it stood. A node is believed what it says of its blocks and nothing else: a message
that does not follow from those before it, or names more than a node can have, ends the stream and
sends it to the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvstore.conductor.table import Table
from kvstore.core.carried import Carried
from kvstore.errors import Invalid, Overloaded
from kvstore.limits import CARRIED_KEPT, NAME_BYTES_MAX, NODE_BLOCKS_MAX
from kvstore.wire.prints import unpacked
from kvstore.wire.v1 import directory_pb2 as pb


class Tracked:
    """Where the conductor stands with one node's directory."""

    def __init__(
        self,
        node_id: str,
        table: Table,
        blocks_max: int = NODE_BLOCKS_MAX,
        carried: Callable[[str, Carried], None] = lambda node_id, one: None,
    ) -> None:
        """`carried` is told what its host's link and SSD carried."""
        self.node_id, self._table, self._blocks_max = node_id, table, blocks_max
        self._carried = carried
        self.epoch = self.sequence = 0  # of what the table has of it; no epoch is 0
        self._begin: pb.FollowReply.Begin | None = None  # of this stream
        self._coming = False  # a snapshot that is not whole yet

    def request(self) -> pb.FollowRequest:
        """What a new stream begins with."""
        self._stop()
        return pb.FollowRequest(epoch=self.epoch, sequence=self.sequence)

    def take(self, reply: pb.FollowReply) -> None:
        """Raises `Invalid` for what cannot be; the next stream starts with a snapshot then."""
        try:
            match reply.WhichOneof("part"):
                case "begin":
                    self._take_begin(reply.begin)
                case "snapshot":
                    self._take_snapshot(reply.snapshot)
                case "entries":
                    self._take_changes(reply.entries)
                    self._take_carried(reply.carried)
                case _:
                    raise Invalid("a message of a kind that this conductor does not know")
        except Overloaded:  # nothing of it is in the table: it is asked for again
            raise
        except Exception:  # else, also where nobody foresaw it, half of it may be there
            self.epoch = self.sequence = 0
            self._stop()
            raise

    def _take_begin(self, begin: pb.FollowReply.Begin) -> None:
        if begin.node_id != self.node_id:
            raise Invalid(f"another node answers there: {begin.node_id!r}")
        if begin.epoch == 0:
            raise Invalid("epoch 0: a node's first is 1")
        stands = (begin.epoch, begin.sequence) == (self.epoch, self.sequence)
        if not (begin.snapshot or stands):
            raise Invalid("it goes on from where this conductor never was")
        self._begin, self._coming = begin, begin.snapshot
        if begin.snapshot:
            self._table.begin(self.node_id)

    def _take_snapshot(self, part: pb.FollowReply.Entries) -> None:
        if not self._coming:
            raise Invalid("a part of a snapshot that was not begun")
        prints, tiers = unpacked(part)
        if not (len(tiers) and tiers.all()):
            raise Invalid("a snapshot names listed blocks, and in each part some")
        self._check_count(self._table.add(self.node_id, prints, tiers))

    def _take_changes(self, entries: pb.FollowReply.Entries) -> None:
        if self._begin is None:
            raise Invalid("changes before the beginning")
        prints, tiers = unpacked(entries)
        stood = self._begin.sequence if self._coming else self.sequence
        if entries.sequence != stood + len(prints):
            raise Invalid(f"change {entries.sequence} after {stood} and {len(prints)} changes")
        if self._coming:
            self._table.finish(self.node_id)
            self._coming, self.epoch, self.sequence = False, self._begin.epoch, stood
        count = self._table.change(self.node_id, prints, tiers)
        self.sequence = entries.sequence
        self._check_count(count)

    def _take_carried(self, carried: Sequence[pb.FollowReply.Carried]) -> None:
        if len(carried) > CARRIED_KEPT:
            raise Invalid(f"{len(carried)} measures; one message has at most {CARRIED_KEPT}")
        for one in carried:
            if len(one.source) > NAME_BYTES_MAX:
                raise Invalid(f"a source's name of {len(one.source)} characters")
            self._carried(self.node_id, Carried(one.bytes, one.seconds, one.of_ssd, one.source))

    def _stop(self) -> None:
        """Of what this stream began nothing counts that is not whole."""
        self._begin, self._coming = None, False
        self._table.abandon(self.node_id)

    def _check_count(self, count: int) -> None:
        if count > self._blocks_max:
            self._table.forget(self.node_id)
            raise Invalid(f"{count} blocks; one node is believed to have {self._blocks_max}")
