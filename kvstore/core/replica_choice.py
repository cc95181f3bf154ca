"""Which nodes get copies of a chain's blocks: the same ones for all of them, as far as that goes.

Pure. Rendezvous hashing: each node draws a number from (chain's first key, node id), one with more
room draws higher ones more often, and the highest are chosen. A node that leaves changes nothing
for chains that it was not chosen for; one that comes takes the place of one other at most.

Before the draw counts what is so already: a node that holds the chain's earlier blocks goes first,
since the later ones are of no use without them; then a rack that has no copy yet, then a host.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

RACK, HOST = "rack", "host"  # labels of nodes that may fail together
ROOM_MIN = 1 / 16  # of its capacity: a full node makes room for what is worth it, and says so


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may be asked."""

    node_id: str
    capacity_bytes: int
    free_bytes: int  # as it was last told, or its capacity
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        return max(1.0, self.free_bytes, ROOM_MIN * self.capacity_bytes)


def choose(
    first: bytes,
    candidates: Sequence[Candidate],
    count: int,
    labels: Mapping[str, str],
    holding: Collection[str] = (),
) -> list[Candidate]:
    """Up to `count` of the candidates for copies of a chain, the best first.

    `labels` are those of the node that has the chain; `holding` are ids of nodes that hold it up to
    where it is to be extended.
    """
    drawn = {one.node_id: _draw(first, one) for one in candidates}
    left, chosen = sorted(candidates, key=lambda one: one.node_id), list[Candidate]()
    taken = {(name, labels[name]) for name in (RACK, HOST) if name in labels}

    def rank(one: Candidate) -> tuple[bool, bool, bool, float]:
        apart = [(name, one.labels.get(name, "")) not in taken for name in (RACK, HOST)]
        return (one.node_id in holding, *apart, drawn[one.node_id])  # type: ignore[return-value]

    while left and len(chosen) < count:
        best = max(left, key=rank)
        left.remove(best)
        chosen.append(best)
        taken |= {(name, best.labels[name]) for name in (RACK, HOST) if name in best.labels}
    return chosen


def _draw(first: bytes, one: Candidate) -> float:
    """A number of chance that is the same wherever it is drawn: of two nodes the one with twice the
    weight has the higher one twice as often."""
    digest = blake2b(one.node_id.encode(), key=first[:64], digest_size=8).digest()
    chance = ((int.from_bytes(digest, "little") >> 12) + 0.5) / 2**52  # neither 0 nor 1
    return -one.weight / math.log(chance)
