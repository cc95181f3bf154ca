"""Three real nodes and a conductor, and what tests ask of them.

a, b, c ──▶ etcd ◀── conductor          a, b, c ──Follow──▶ conductor
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import grpc

from kvstore.block import Chain
from kvstore.metadata.records import NodeRecord
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import Caller, NodeProcess, eventually, payload, prompt
from tests.pools import ConductorProcess, Nodes

SOON_SECONDS = 60.0  # far more than it takes on a machine that does nothing else
# One is promised for an answer, and 3.5 until a dead node is named no more; but this machine may do
# other things too.
ANSWER_SECONDS = 8.0
GONE_SECONDS = 10.0


class Three:
    """Nodes a, b and c."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        options = {"dram": "32MiB", "slab": "8MiB", "ssd": "64MiB"}
        self.all: dict[str, NodeProcess] = {
            name: nodes.node(name, **options) for name in ("a", "b", "c")
        }
        self.conductor: ConductorProcess = nodes.conductor()
        self._callers: dict[str, tuple[int, Caller]] = {}
        self._prompts = iter(range(1, 1_000_000))

    def at(self, name: str) -> Caller:
        """A caller with a session at a node as it runs now."""
        node = self.all[name]
        pid, caller = self._callers.get(name, (0, None))
        if caller is None or pid != node.pid or not caller.stream.is_active():
            caller = node.caller()
            caller.register()
            self._callers[name] = (node.pid, caller)
        return caller

    def ready(self) -> None:
        """Start who is not running; return when each knows what the others have."""
        for node in self.all.values():
            if node.exited is not None:
                node.start()
            node.signal(signal.SIGCONT)
        eventually(lambda: len(self.nodes.entries(NodeRecord.prefix)) == 3, SOON_SECONDS)
        for name in self.all:
            blocks = self.stored([name])
            for other in self.all:
                self.has(other, blocks)

    def at_rest(self) -> None:
        """Nobody holds anything anywhere, and nothing broke."""
        for name, node in self.all.items():
            if node.exited is None:
                eventually(lambda name=name: held(self.at(name)) == (0, 0), SOON_SECONDS)
            assert "Traceback" not in node.log, node.log[-4_000:]

    def new(self, blocks: int = 4) -> Chain:
        return prompt(next(self._prompts), blocks)

    def stored(self, names: Sequence[str], blocks: int = 4) -> Chain:
        """A new prompt that these nodes hold, known to the conductor."""
        made = self.new(blocks)
        for name in names:
            assert self.at(name).put(made) == [pb.PutReply.STORED] * blocks
        addresses = {self.all[name].address for name in names}

        def known() -> bool:
            holding = self.conductor.holding(made)
            return {name for name, (found, _) in holding.items() if found == blocks} >= addresses

        eventually(known, SOON_SECONDS)
        return made

    def has(self, name: str, blocks: Chain) -> None:
        """A node reads all of it, sooner or later."""
        eventually(lambda: self.read(name, blocks) == len(blocks), SOON_SECONDS)

    def read(self, name: str, blocks: Chain) -> int:
        """How many blocks a node reads now; each is right, or the test ends here."""
        return right(self.at(name), blocks)

    def seconds_of_read(self, name: str, blocks: Chain) -> tuple[int, float]:
        began = time.monotonic()
        return self.read(name, blocks), time.monotonic() - began

    def kill(self, name: str) -> None:
        self.all[name].kill()

    def pause(self, name: str) -> None:
        self.all[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.all[name].signal(signal.SIGCONT)


def right(caller: Caller, blocks: Chain) -> int:
    outcomes, found = caller.get(blocks)
    for name, outcome, got in zip(blocks.hashes, outcomes, found, strict=True):
        assert got == (payload(name) if outcome == pb.HIT else b""), "wrong bytes"
    return outcomes.count(pb.HIT)


def held(caller: Caller) -> tuple[int, int]:
    stats = caller.stats()
    return stats.pins, stats.windows


def failed(call: object) -> bool:
    try:
        call()  # type: ignore[operator]
    except grpc.RpcError:
        return True
    return False
