"""What an engine says of itself to conductors, where it has no data sheet to say it by."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstore.config import Stands
from kvstore.wire.v1 import conductor_pb2 as pb

# Of a model of 8B on a large GPU. Conductors learn what it really costs from the first steps on;
# what is thought too dear would not even be tried.
_PREFILL = (0.01, 5e-5, 1e-9)
_DECODE = (0.01, 1e-4, 2e-8)
_LINK_BYTES_PER_SECOND = 1e10  # of its host, until transfers are measured


@dataclass(frozen=True, slots=True)
class Who:
    """An engine that serves one namespace and group."""

    engine_id: str
    address: str  # that requests are to be sent to: see `kvstore.address`
    namespace: bytes
    group: int
    block_tokens: int
    token_bytes: int  # of KV, of one token
    room_tokens: int  # of KV that it has place for
    prefills: bool
    decodes: bool
    rank: int | None = None  # which it is of several at its address
    stands: Stands = field(default_factory=Stands)
    revision: str = ""  # of its weights

    def message(self) -> pb.ReportRequest.Engine:
        """All but the node whose memory is its own."""
        does = {}
        if self.prefills:
            does["prefill"] = _cost(*_PREFILL)
        if self.decodes:
            does["decode"] = _cost(*_DECODE)
        engine = pb.ReportRequest.Engine(
            engine_id=self.engine_id,
            address=self.address,
            namespace=self.namespace,
            group=self.group,
            block_tokens=self.block_tokens,
            token_bytes=self.token_bytes,
            room_tokens=self.room_tokens,
            data_parallel_rank=self.rank,
            revision=self.revision,
            link_bytes_per_second=_LINK_BYTES_PER_SECOND,
            **does,
        )
        tell(self.stands, engine)
        return engine


def tell(stands: Stands, engine: pb.ReportRequest.Engine) -> None:
    """Write down where an engine's host stands, in what conductors are told of it."""
    engine.rack, engine.nvlink_domain = stands.rack, stands.nvlink_domain
    engine.domain_bytes_per_second = stands.nvlink_bytes_per_second
    engine.cross_rack_bytes_per_second = stands.cross_rack_bytes_per_second


def _cost(a: float, b: float, c: float) -> pb.ReportRequest.Cost:
    return pb.ReportRequest.Cost(a=a, b=b, c=c)
