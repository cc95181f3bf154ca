"""What lies in the pool: looked at, exchanged and spoiled behind the engines' backs."""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from kvstore.block import Chain, chain
from kvstore.layout import SlotLayout
from kvstore.spec import KVSpec
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import CALL_SECONDS, NodeProcess, mapped, put_parts


class Pool:
    """A node's blocks of the one namespace that the engines of a test share."""

    def __init__(self, node: NodeProcess) -> None:
        self._caller = node.caller("tests")

    @property
    def spec(self) -> KVSpec:
        """The namespace, as the engines made it."""
        (found,) = self._caller.stats().namespaces
        return KVSpec.parse(found.spec)

    @property
    def quarantined(self) -> str:
        """Why nobody may use the namespace, or nothing."""
        (found,) = self._caller.stats().namespaces
        return found.quarantined

    @property
    def blocks(self) -> int:
        return self._caller.stats().blocks

    def counter(self, name: str) -> int:
        return self._caller.counters()[name]

    def chain(self, tokens: Sequence[int], group: int = 0, salt: str = "") -> Chain:
        """The full blocks of a prompt."""
        spec = self.spec
        extra = {0: blake3(b"cache_salt\0" + salt.encode()).digest()} if salt else None
        size = spec.groups[group].block_tokens
        return chain(spec.digest, group, tokens, size, extra).full()

    def has(self, tokens: Sequence[int], group: int = 0, salt: str = "") -> list[bool]:
        """Which of a prompt's full blocks are there."""
        about = self._about(self.chain(tokens, group, salt), group)
        return [one == pb.HIT for one in self._caller.ask("Exists", **about).outcomes]

    def get(self, tokens: Sequence[int], group: int = 0) -> list[bytes]:
        request = pb.GetRequest(**self._about(self.chain(tokens, group), group))
        found: list[bytes] = []
        for part in self._caller.kv.Get(request, timeout=CALL_SECONDS):
            if part.HasField("block"):
                found.append(b"")
            else:
                found[-1] += part.data
        return found

    def replace(self, tokens: Sequence[int], group: int, index: int, data: bytes) -> None:
        """Store other bytes as one block of a prompt, well-formed and with a valid hash."""
        self.remove(tokens, group, index)
        self.put(tokens, group, index, data)

    def put(self, tokens: Sequence[int], group: int, index: int, data: bytes) -> None:
        blocks, spec = self.chain(tokens, group), self.spec
        one = blocks.between(index, index + 1)
        header = {"group": group, "parent": self._parent(blocks, group, index)}
        stored = self._caller.kv.Put(put_parts(one, [data], spec, **header), timeout=CALL_SECONDS)
        assert list(stored.stored) == [pb.PutReply.STORED]

    def remove(self, tokens: Sequence[int], group: int, index: int) -> None:
        one = self.chain(tokens, group).between(index, index + 1)
        assert self._caller.ask("Remove", **self._about(one, group)).removed == 1

    def flip(self, tokens: Sequence[int], group: int, index: int, *, strip: int = 0) -> None:
        """Flip a bit of a block where it lies in the node's memory."""
        one = self.chain(tokens, group).between(index, index + 1)
        opened = self._caller.ask("Open", **self._about(one, group))
        self._caller.ask("Close", handles=opened.handles)
        layout = SlotLayout.of(self.spec, group)
        at = opened.slot_offsets[0] + layout.head_bytes + strip * layout.strip_stride + 100
        with mapped(self._caller) as arena:
            arena.bytes[at] ^= 4

    def _about(self, blocks: Chain, group: int) -> dict[str, object]:
        return {"namespace": self.spec.digest, "group": group, "hashes": blocks.hashes}

    def _parent(self, blocks: Chain, group: int, index: int) -> bytes:
        """Blocks of a window stand by themselves."""
        return b"" if self.spec.groups[group].window_tokens else blocks.parent(index)
